"""Every checkout of the same sources finds the same compiled kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import config

import loraplex
from loraplex.engine.device.threads import LOCATORS
from loraplex.engine.kernels import cache_locator
from loraplex.engine.kernels.cache_locator import PackageLocator

SOURCES = ("__init__.py", "engine/__init__.py", "engine/kernels")
COMPILE = """
from loraplex.engine.kernels.token_layout import lay_out
import numpy as np
lay_out(np.array([1]), np.array([0]), np.zeros((1, 1), np.int32), 16)
print(sum(lay_out.stats.cache_hits.values()), lay_out.py_func.__code__.co_filename)
"""


def test_a_copy_elsewhere_takes_what_was_compiled_here(tmp_path: Path) -> None:
    own = Path(loraplex.__file__).parent
    for checkout in ("first", "second"):
        for source in SOURCES:
            target = tmp_path / checkout / "loraplex" / source
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (own / source).is_dir() else shutil.copy
            copy(own / source, target)
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_CACHE_LOCATOR_CLASSES": LOCATORS}
    for checkout, hits in (("first", 0), ("second", 1)):
        environment = os.environ | variables | {"PYTHONPATH": str(tmp_path / checkout)}
        run = subprocess.run(
            [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=True
        )
        found, file = run.stdout.split()
        assert int(found) == hits and Path(file).is_relative_to(tmp_path / checkout)


def test_files_of_others_are_left_to_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))

    def function() -> None: ...

    assert PackageLocator.from_function(function, str(tmp_path / "kernel.py")) is None
    locator = PackageLocator.from_function(function, cache_locator.__file__)
    assert locator is not None and locator.get_cache_path() == str(tmp_path / "engine.kernels")
