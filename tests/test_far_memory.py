"""No place of a CUDA kernel is counted in 32 bits where a tensor may be larger."""

from pathlib import Path

from tests.interpreted import run_interpreted


def test_kernels_in_memory_past_32_bits() -> None:
    run_interpreted(Path(__file__).with_name("far_memory_cases.py"))
