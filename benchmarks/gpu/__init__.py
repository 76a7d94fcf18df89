"""The CUDA kernels beside what the card can do: one command for a machine with a GPU, `python -m benchmarks.gpu`."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("loraplex") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
