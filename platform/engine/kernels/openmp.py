"""One OpenMP pool for torch and numba.

torch's wheel brings its own libgomp under the name `libgomp.so.1`; numba's OpenMP layer asks for `libgomp.so.1.0.0`.
The loader takes these for two libraries, so two pools would spin against each other, and on a machine without a system
libgomp numba's layer does not load at all. A copy of the layer, made in memory, asks for torch's name instead.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import numba
import torch
from numba.core import config

LAYER: Final = "numba.np.ufunc.omppool"
ASKED: Final = b"libgomp.so.1.0.0\0"
GIVEN: Final = b"libgomp.so.1\0\0\0\0\0"


def share_torch_openmp() -> str:
    """Make numba run its parallel loops on torch's OpenMP threads; returns in words what it will do.

    Must run before the first parallel numba function is called; calling it again changes nothing.
    """
    if LAYER not in sys.modules:
        reason = _why_not()
        if reason:
            return f"numba runs its own thread pool ({reason})"
        sys.modules[LAYER] = _load_patched(_layer_path())
    config.THREADING_LAYER = "omp"
    return "numba shares torch's OpenMP pool"


def set_numba_threads(count: int) -> None:
    numba.set_num_threads(count)


def numba_thread_limit() -> int:
    """The most threads numba can use in this process, fixed when it was imported."""
    return int(config.NUMBA_NUM_THREADS)


def _why_not() -> str | None:
    if sys.platform != "linux":
        return f"sharing is only known on Linux, this is {sys.platform}"
    if not (Path(torch.__file__).parent / "lib" / "libgomp.so.1").exists():
        return "this torch does not bring its own libgomp"
    if importlib.util.find_spec(LAYER) is None or _layer_path().read_bytes().count(ASKED) != 1:
        return "this numba has no layer for GNU OpenMP"
    return None


def _layer_path() -> Path:
    spec = importlib.util.find_spec(LAYER)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


def _load_patched(original: Path) -> ModuleType:
    descriptor = os.memfd_create("omppool")
    with os.fdopen(descriptor, "wb") as file:
        file.write(original.read_bytes().replace(ASKED, GIVEN))
        file.flush()
        loader = importlib.machinery.ExtensionFileLoader(LAYER, f"/proc/self/fd/{descriptor}")
        spec = importlib.util.spec_from_file_location(LAYER, loader.path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    # The descriptor's number will be another file's: who reads modules' files would read that one, or wait for a pipe.
    module.__file__ = str(original)
    return module
