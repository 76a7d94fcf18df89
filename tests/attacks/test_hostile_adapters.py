"""Every hostile adapter is refused for its own reason, quickly, in little memory, touching nothing but its own file."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lora.adapters import BASE, make_config, make_tensors, write_adapter

from .hostile_adapters import Attack, attacks

ATTACKS = list(attacks())
SECONDS, MEMORY = 2.0, 256 << 20
Verdicts = dict[str, dict[str, Any]]


def judge(folders: list[Path]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.attacks.judge", json.dumps(dataclasses.asdict(BASE))]
    text = "".join(f"{folder}\n" for folder in folders)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The good one comes first: it brings in whatever the standard library loads late."""
    root = tmp_path_factory.mktemp("attacks")
    folders = [write_adapter(root / "good", make_config(), make_tensors())]
    folders += [write_adapter(root / attack.name, attack.config, attack.weights) for attack in ATTACKS]
    return {folder.name: verdict for folder, verdict in zip(folders, judge(folders), strict=True)}


def test_the_good_one_is_served(verdicts: Verdicts) -> None:
    assert verdicts["good"]["served"]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_refused_for_its_own_reason(attack: Attack, verdicts: Verdicts) -> None:
    verdict = verdicts[attack.name]
    assert not verdict["served"]
    assert attack.reason in " | ".join(verdict["failures"]), verdict["failures"]
    assert all(message.isascii() and message.isprintable() and len(message) < 1000 for message in verdict["failures"])
    assert verdict["seconds"] <= SECONDS
    assert verdict["memory"] <= MEMORY
    assert [
        event for event in verdict["events"] if not event.endswith(f"{attack.name}/adapter_model.safetensors")
    ] == []


def test_names_are_unique() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
