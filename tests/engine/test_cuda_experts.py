"""Mixtures of experts on CUDA's path without a CUDA device."""

from pathlib import Path

from tests.interpreted import run_interpreted


def test_the_engine_in_the_interpreter() -> None:
    run_interpreted(Path(__file__).parent / "cuda" / "expert_cases.py")
