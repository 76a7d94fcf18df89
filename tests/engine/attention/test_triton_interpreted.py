"""The CUDA kernels without a CUDA device."""

from pathlib import Path

import pytest

from tests.interpreted import run_interpreted


@pytest.mark.parametrize("cases", ["triton_cases.py", "triton_eight_bits_cases.py", "triton_kinds_cases.py"])
def test_kernels_in_the_interpreter(cases: str) -> None:
    run_interpreted(Path(__file__).with_name(cases))
