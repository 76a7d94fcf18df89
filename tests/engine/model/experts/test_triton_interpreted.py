"""What layers with experts launch on CUDA, without a CUDA device."""

from pathlib import Path

from tests.interpreted import run_interpreted


def test_kernels_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).with_name("triton_cases.py"))
