"""Whether something runs in so much memory and no more: Linux refuses it any more (RLIMIT_DATA), so nothing that is
taken for a moment is missed.

It is asked in a process of its own, which imports what it measures and little else: transformers took half of its time.
"""

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from loraplex.engine.model.config import ModelConfig

ROOT = Path(__file__).parents[2]
SLACK = 4 << 20
"""For the interpreter, torch's threads, and what is small."""


def print_alone(module: str, call: str, mapped_from: int) -> str:
    """What a process of its own prints of this call. Arrays of so many bytes get pages of their own, which go back when
    they are freed."""
    code = f"from {module} import *; print({call})"
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(mapped_from), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.stdout or done.stderr


def is_enough(memory: int, run: Callable[[], object]) -> bool:
    """Beside what this process may write to already."""
    gc.collect()
    resource.setrlimit(resource.RLIMIT_DATA, (_writable() + memory + SLACK, resource.RLIM_INFINITY))
    try:
        run()
    except (MemoryError, RuntimeError) as error:
        assert isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return True


def layer_bytes(base: str) -> int:
    """Of a layer's linears, those of its experts too, in two bytes each."""
    layer = ModelConfig.from_folder(base).spec.layers[0]
    return sum(2 * linear.inputs * linear.outputs for linear in (*layer.linears(), *layer.expert_linears()))


def _writable() -> int:
    """Bytes of memory that this process may write to."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "VmData:")
