"""The engine on CUDA's path without a CUDA device."""

from pathlib import Path

from tests.interpreted import run_interpreted


def test_the_engine_in_the_interpreter() -> None:
    here = Path(__file__).parent
    run_interpreted(*sorted((here / "cuda").glob("*_cases.py")), here / "certify" / "cuda_cases.py")
