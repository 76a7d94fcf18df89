"""The engine on CUDA's path without a CUDA device."""

from pathlib import Path

from tests.interpreted import run_interpreted


def test_the_engine_in_the_interpreter() -> None:
    """Mixtures of experts have a process of their own: test_cuda_experts.py."""
    here = Path(__file__).parent
    cases = [path for path in sorted((here / "cuda").glob("*_cases.py")) if path.stem != "expert_cases"]
    run_interpreted(*cases, here / "certify" / "cuda_cases.py")
