"""The CUDA kernels without a CUDA device: triton decides at import whether to interpret, so they get a process."""

import os
import subprocess
import sys
from pathlib import Path


def test_kernels_in_the_interpreter() -> None:
    cases = Path(__file__).with_name("triton_cases.py")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
