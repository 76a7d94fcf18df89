"""Every hostile adapter is refused for its own reason, quickly, in little memory, touching nothing but its own file."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loraplex.lora.files.manifest import BaseSignature
from loraplex.lora.inspection import inspection
from loraplex.lora.inspection.inspection import inspect_adapter
from tests.lora.adapters import BASE, Tensors, encode, frame, make_config, make_tensors, read_manifest, write_adapter
from tests.lora.signatures import llama_signature, module_path, with_linears

from .hostile_adapters import attacks
from .hostile_headers import DATA, Q_A, Q_B, entry, header

NAMES = [(attack.name, attack.reason) for attack in attacks()]
REASONS = dict(NAMES)
SECONDS, MEMORY = 2.0, 256 << 20
Verdicts = dict[str, dict[str, Any]]


MULTIPLIED = {"converted-loha-absurd", "converted-lokr-absurd", "converted-loha-cancels"}
"""What only the product shows: its file was begun."""


def judge(folders: Iterable[Path], base: BaseSignature = BASE) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.attacks.judge", json.dumps(dataclasses.asdict(base))]
    text = "".join(f"{folder}\n" for folder in folders)
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The good one comes first: it brings in whatever the standard library loads late."""
    root = tmp_path_factory.mktemp("attacks")
    folders = {"good": write_adapter(root / "good", make_config(), make_tensors())}
    for number, attack in enumerate(attacks()):
        folders[attack.name] = write_adapter(root / str(number), attack.config, attack.weights)
    found = dict(zip(folders, judge(folders.values()), strict=True))
    assert sorted(path.name for path in root.iterdir()) == sorted(folder.name for folder in folders.values())
    return found


def check_harmless(verdict: dict[str, Any], multiplied: bool = False) -> None:
    assert verdict["seconds"] <= SECONDS
    assert verdict["memory"] <= MEMORY
    assert verdict["imported"] == []
    assert all(event.startswith("open ") for event in verdict["events"])
    opened = [event.rsplit("/", 1)[1] for event in verdict["events"]]
    assert opened in ([], ["adapter_model.safetensors r"] + ["converted.safetensors x"] * multiplied)


def test_the_good_one_is_served(verdicts: Verdicts) -> None:
    assert verdicts["good"]["served"]


def test_there_are_hundreds_each_with_its_own_name() -> None:
    assert len(REASONS) == len(NAMES) >= 500


@pytest.mark.parametrize("name", REASONS)
def test_refused_for_its_own_reason(name: str, verdicts: Verdicts) -> None:
    verdict = verdicts[name]
    assert not verdict["served"]
    (message,) = verdict["failures"]
    assert REASONS[name] in message
    assert message.isascii() and message.isprintable() and len(message) < 1000
    check_harmless(verdict, name in MULTIPLIED)


def refusals(folder: Path, base: BaseSignature = BASE) -> list[str]:
    config = (folder / "adapter_config.json").read_bytes()
    return [found.message for found in inspect_adapter(config, folder / "adapter_model.safetensors", base).failures()]


@pytest.mark.parametrize("damage", [{Q_A: None}, {Q_B: entry(128, 512, shape=[24, 4])}, {"z": entry(DATA, DATA + 256)}])
def test_a_bad_configuration_does_not_hide_a_bad_file(damage: dict[str, Any], tmp_path: Path) -> None:
    """Nor is a byte read by a header that was found wrong."""
    file = frame(header(damage), bytes(DATA))
    (alone,) = refusals(write_adapter(tmp_path, make_config(), file))
    both = refusals(write_adapter(tmp_path, make_config(r=0), file))
    assert len(both) == 2 and "r is 0" in both[0] and both[1] == alone


LARGE = llama_signature(
    fingerprint="large", num_layers=6, kinds={"q_proj": (896, 896), "up_proj": (896, 4864), "down_proj": (4864, 896)},
    name="acme/large", vocab_size=320, hidden_size=896,
)  # fmt: skip
"""As wide as Qwen2.5-0.5B: eighteen linears, each of which takes a second to convert."""


def large_loha(**last: NDArray[np.float32]) -> Tensors:
    """Of a rank whose square has to be decomposed; `last` are parts of the last linear."""
    random, tensors = np.random.default_rng(0), dict[str, NDArray[np.float32]]()
    for layer in range(LARGE.num_layers):
        for kind, (inputs, outputs) in LARGE.linears.items():
            for part, shape in (("a", (outputs, 32)), ("b", (32, inputs))):
                for side in (1, 2):
                    name = f"base_model.model.{module_path(layer, kind)}.hada_w{side}_{part}"
                    tensors[name] = random.normal(size=shape).astype(np.float32)
    return tensors | {f"base_model.model.{module_path(5, 'up_proj')}.{part}": value for part, value in last.items()}


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({"hada_w2_b": np.full((32, 896), np.nan, np.float32)}, "NaN, infinite or above"),
        ({"hada_w2_b": np.ones((32, 895), np.float32)}, "has hada_w2_b of shape [32, 895] instead of [32, 896]"),
        ({"hada_t1": np.ones((3, 3), np.float32)}, "they are for convolutions"),
        ({}, "the nearest LoRA of rank 512 misses"),
    ],
    ids=["values", "shape", "stranger", "nearest"],
)
def test_nothing_is_multiplied_before_all_is_looked_at(last: Tensors, reason: str, tmp_path: Path) -> None:
    """The fault is in the last of many large linears; what no LoRA comes near is found at the first of them."""
    config = {"peft_type": "LOHA", "target_modules": list(LARGE.linears), "base_model_name_or_path": "acme/large"}
    folder = write_adapter(tmp_path, config | {"r": 32, "alpha": 32}, large_loha(**last))
    (verdict,) = judge([folder], LARGE)
    (message,) = verdict["failures"]
    assert reason in message
    if last:
        check_harmless(verdict)
    else:
        assert message.count("layer 0") == 1
    assert verdict["decompositions"] == (0 if last else 1)


def test_a_terabyte_that_is_not_there(tmp_path: Path) -> None:
    """A sparse file: it costs its maker nothing."""
    rows = 1 << 34
    huge = {Q_A: entry(0, rows * 64, shape=[rows, 16]), Q_B: entry(rows * 64, rows * 64 + 384, shape=[24, 4])}
    folder = write_adapter(tmp_path, make_config(), frame(json.dumps(huge).encode()))
    file = folder / "adapter_model.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size + rows * 64 + 384)
    (verdict,) = judge([folder])
    assert f"A has rank {rows}, B has rank 4" in verdict["failures"][0]
    check_harmless(verdict)


def test_thousands_of_patterns_on_a_deep_base(tmp_path: Path) -> None:
    deep = with_linears(BASE, BASE.linears, 126)
    patterns = {f"m{index}": 4 for index in range(3000)}
    config = make_config(rank_pattern=patterns, target_modules=list(BASE.linears))
    folder = write_adapter(tmp_path, config, make_tensors(5, list(BASE.linears), deep))
    started = time.process_time()
    (message,) = refusals(folder, deep)
    assert "has rank 5, adapter_config.json says 4" in message
    assert time.process_time() - started <= SECONDS


def test_thousands_of_dots_on_a_deep_base(tmp_path: Path) -> None:
    """Each stands for any character, and no key is found to be no module's name before its middle."""
    deep, kinds = with_linears(BASE, BASE.linears, 99), list(BASE.linears)
    letters = [place for place, letter in enumerate("model.layers") if letter != "."]

    def dotted(mask: int, layer: str) -> str:
        hidden = {place for index, place in enumerate(letters) if mask >> index & 1 and place}
        start = "".join("." if place in hidden else letter for place, letter in enumerate("model.layers"))
        return f"{start}.{layer}.self_attn.q_proj"

    ranks, alphas = (
        {dotted(mask, layer): 4 for mask in range(2048) for layer in pair} for pair in (("zz", "zy"), ("zx", "zw"))
    )
    config = make_config(rank_pattern=ranks, alpha_pattern=alphas, target_modules=kinds)
    folder = write_adapter(tmp_path, config, make_tensors(4, kinds, deep))
    started = time.process_time()
    assert refusals(folder, deep) == []
    assert time.process_time() - started <= SECONDS


@pytest.mark.parametrize("kept", [8, 100, -1])
def test_a_file_that_shrinks_while_it_is_read(kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its size was asked for, and after its header was read."""
    file = write_adapter(tmp_path, make_config(), make_tensors()) / "adapter_model.safetensors"

    def shrink(*arguments: Any) -> Any:
        os.truncate(file, kept % file.stat().st_size)
        return original(*arguments)

    place = "_judge_values" if kept < 0 else "read_header"
    original = getattr(inspection, place)
    monkeypatch.setattr(inspection, place, shrink)
    assert refusals(tmp_path) == ["adapter_model.safetensors cannot be read: the file was cut while it was being read"]


def test_what_is_odd_and_means_something_is_served(tmp_path: Path) -> None:
    """A negative scaling, subnormal values among others, and texts that nobody runs."""
    tensors = make_tensors()
    tensors[Q_A][:, 0] = 1e-40
    code = "__import__('os').system('touch owned')"
    weights = encode(tensors, metadata={"format": code, "../../owned": code})
    config = make_config(lora_alpha=-8, revision=code, base_model_name_or_path="../../tiny")
    manifest = read_manifest(write_adapter(tmp_path, config, weights))
    assert {module.scaling for module in manifest.modules} == {-2.0}
