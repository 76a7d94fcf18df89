"""What guards memory holds under `python -O` too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loraplex.engine.kernels.cuda.norm import add_rms_norm
from loraplex.quant.kernels.cuda.guard import require

PLATFORM = Path(__file__).resolve().parents[3] / "platform"
FILES = sorted(file for file in PLATFORM.rglob("*.py") if "kernels/cuda" in file.as_posix())


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PLATFORM)))
def test_launchers_assert_nothing(file: Path) -> None:
    asserted = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]
    assert not asserted, f"lines {asserted}: python -O leaves them out; call `require` of quant/kernels/cuda/guard.py"


def test_a_launch_that_would_leave_its_memory_is_an_error() -> None:
    x, weight = torch.empty(3, 8, dtype=torch.bfloat16), torch.empty(8, dtype=torch.bfloat16)
    for residual in (torch.empty(2, 8, dtype=torch.bfloat16), torch.empty(8, 3, dtype=torch.bfloat16).T):
        with pytest.raises(RuntimeError, match="nothing was launched: rows and residual must be contiguous"):
            add_rms_norm(x, residual, weight, 1e-5)


def test_it_holds_without_assertions() -> None:
    code = "from loraplex.quant.kernels.cuda.guard import require; require(False, 'no room')"
    result = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert result.returncode == 1 and "RuntimeError: nothing was launched: no room" in result.stderr
    require(True, "never said")
