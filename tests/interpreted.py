"""Tests of triton kernels in its interpreter: it decides at import whether to interpret, so they get a process."""

import os
import subprocess
import sys
from pathlib import Path


def run_interpreted(*cases: Path) -> None:
    """All tests of these files, in one process."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, cases)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
