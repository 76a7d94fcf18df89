"""A part of a long campaign a day; a failure says how to try the same cases again."""

import subprocess
import sys
from pathlib import Path

from .campaign import SEED, Campaign

ROOT = Path(__file__).resolve().parent.parent


def test_the_parts_of_several_seeds_are_all_cases_each_once() -> None:
    parts = [Campaign(seed, whole=False).part(103, 5) for seed in range(20261128, 20261133)]
    assert sorted(number for part in parts for number in part) == list(range(103))
    assert Campaign(20261128, whole=True).part(103, 5) == range(103)


def test_all_cases_must_see_what_is_rare_as_often_as_ever() -> None:
    assert Campaign(1, whole=True).enough(100, 5) == 100
    assert Campaign(1, whole=False).enough(100, 5) == 10


def test_a_failure_says_how_to_try_the_same_cases_again(tmp_path: Path) -> None:
    test = tmp_path / "test_random.py"
    test.write_text("def test_it(campaign): assert campaign.seed != 7\ndef test_other(): pass")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-m", "campaign", str(test)]
    environment = {"PATH": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", SEED: "7"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 1, ended.stderr
    assert "CAMPAIGN_SEED=7 .venv/bin/python -m pytest 'test_random.py::test_it'" in ended.stdout
    assert "1 failed, 1 deselected" in ended.stdout
