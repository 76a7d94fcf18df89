"""AdaLoRA, LoHa, LoKr and VeRA as LoRA, against PEFT itself: the change of each weight, the logits, the tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import save_as_lora

from loraplex import LLM, SamplingParams
from loraplex.engine.model.config import base_signature
from tests.checkpoints import make_checkpoint, reference_model

from .adapters import read_manifest
from .other_kinds import DOWN_1, Q_0, Q_1, adalora, changes_of, converted, loha, lokr, save_random, vera

TOLERANCE = 1e-4
NEW_TOKENS = 12
PROMPT = [5, 17, 200, 31, 8, 99, 4, 250, 61]

CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "adalora": (adalora, {}, "rank 6"),
    "adalora-rank1-no-alpha": (adalora, {"init_r": 1, "target_r": 1, "lora_alpha": -1}, "rank 1"),
    "loha": (loha, {}, "rank 16"),
    "loha-rank1-one-layer": (loha, {"r": 1, "layers_to_transform": [1]}, "rank 1"),
    "loha-more-pairs-than-outputs": (loha, {"r": 10, "alpha": -7}, "ranks 16 to 60"),
    "loha-patterns": (
        loha,
        {"rank_pattern": {"q_proj": 3, DOWN_1: 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 30}},
        "ranks 4 to 16",
    ),
    "lokr-products": (lokr, {"decompose_both": True}, "rank 4"),
    "lokr-whole-and-product": (lokr, {"decompose_factor": 4}, "ranks 6 to 8"),
    "lokr-whole": (lokr, {"r": 60, "decompose_factor": 2}, "ranks 16 to 60"),
    "lokr-patterns": (
        lokr,
        {"rank_pattern": {"down_proj": 3}, "alpha_pattern": {"q_proj": -1}, "target_modules": ["q_proj", "down_proj"]},
        "ranks 12 to 18",
    ),
    "vera": (vera, {}, "rank 5"),
    "vera-wider-than-some": (vera, {"r": 30, "target_modules": ["k_proj", "down_proj"]}, "ranks 16 to 30"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of sizes that have few divisors in common."""
    odd = {"hidden_size": 60, "intermediate_size": 105, "head_dim": 16, "num_key_value_heads": 1}
    return make_checkpoint(tmp_path_factory.mktemp("base") / "base", **odd)


def assert_equal_changes(old: Path, new: Path, base: Path) -> None:
    """PEFT adds the same to every weight with either."""
    expected = {path: change for path, change in changes_of(old, base).items() if change.any()}
    seen = changes_of(new, base)
    assert seen.keys() == expected.keys()
    for path, change in expected.items():
        assert torch.dist(seen[path], change) < 1e-6 * change.norm(), path


@pytest.mark.parametrize("case", CASES)
def test_peft_reads_the_same_change_of_every_weight(base: Path, case: str, tmp_path: Path) -> None:
    make, settings, ranks = CASES[case]
    old, new = save_random(make(**settings), base, tmp_path / "old"), tmp_path / "new"
    (finding,) = converted(old, base, new)
    assert (finding.check, finding.level) == ("converted", "pass")
    assert finding.message.endswith(f", exactly, at {ranks}")
    assert_equal_changes(old, new, base)
    read_manifest(new, base_signature(base))


def test_ranks_that_adalora_dropped_cost_nothing(base: Path, tmp_path: Path) -> None:
    config = adalora(target_modules=["q_proj", "down_proj"])
    kept = {Q_0: [False] * 6, Q_1: [False, True] * 3, DOWN_1: [True] + [False] * 5}
    old, new = save_random(config, base, tmp_path / "old", kept=kept), tmp_path / "new"
    left_out, done = converted(old, base, new)
    assert left_out.message == "modules with no effect are left out: q_proj of layer 0"
    assert done.message == "converted from AdaLoRA, exactly, at ranks 1 to 6"
    assert_equal_changes(old, new, base)
    manifest = read_manifest(new, base_signature(base))
    assert {(module.layer, module.kind): module.rank for module in manifest.modules} == {
        (0, "down_proj"): 6,
        (1, "q_proj"): 3,
        (1, "down_proj"): 1,
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_read_as_they_are(base: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    old, new = save_random(loha(target_modules=["q_proj"]), base, tmp_path / "old", dtype=dtype), tmp_path / "new"
    assert converted(old, base, new)[0].message == "converted from LoHa, exactly, at rank 16"
    assert_equal_changes(old, new, base)


def test_what_peft_converts_itself_is_read(base: Path, tmp_path: Path) -> None:
    """It is the remedy for what cannot be converted here."""
    old = save_random(loha(target_modules=["q_proj"]), base, tmp_path / "old")
    save_as_lora(tmp_path / "new", reference_model(base, {"default": old}), rank=16)
    assert read_manifest(tmp_path / "new", base_signature(base)).rank == 16


@torch.inference_mode()
def test_logits_and_tokens_are_those_of_peft_with_the_first_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An LLM converts them by itself, into folders that go with it."""
    base, scratch = make_checkpoint(tmp_path / "base", "qwen2"), tmp_path / "scratch"
    makers = {"adalora": adalora(), "loha": loha(), "lokr": lokr(decompose_both=True), "vera": vera()}
    tokens: list[list[int]] = []
    for seed, (name, config) in enumerate(makers.items()):
        old, new = save_random(config, base, tmp_path / name, seed=seed), tmp_path / f"new-{name}"
        converted(old, base, new)
        first, second = (reference_model(base, {name: folder}) for folder in (old, new))
        ids = first.generate(torch.tensor([PROMPT]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
        assert (first(ids).logits - second(ids).logits).abs().max() < TOLERANCE
        tokens.append(ids[0, len(PROMPT) :].tolist())
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    caplog.set_level("INFO", "loraplex.engine.offline.adapter_files")
    folders = {name: tmp_path / name for name in makers}
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with LLM(base, folders, max_model_len=64, num_kv_blocks=32, adapter_memory=8 << 20, num_threads=1) as llm:
        outputs = llm.generate([PROMPT] * 5, params, adapter=[*makers, None], use_tqdm=False)
        assert len(list(scratch.glob("loraplex-*/adapter_model.safetensors"))) == len(makers)
    served = [output.outputs[0].token_ids for output in outputs]
    assert served[:-1] == tokens
    assert len(set(map(tuple, served))) == 5
    assert "adapter 'loha': converted from LoHa, exactly, at rank 16" in caplog.messages
    assert not list(scratch.glob("loraplex-*"))


def test_an_llm_refuses_what_cannot_be_converted_and_leaves_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    good, bad = save_random(loha(), base, tmp_path / "good"), save_random(vera(), base, tmp_path / "bad")
    config = json.loads((bad / "adapter_config.json").read_text())
    (bad / "adapter_config.json").write_text(json.dumps(config | {"save_projection": False}))
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with pytest.raises(ValueError, match=r"^adapter 'bad': .*vera_A and vera_B were not saved.*save_projection=True"):
        LLM(base, {"good": good, "bad": bad}, num_kv_blocks=32, adapter_memory=8 << 20, num_threads=1)
    assert not list(scratch.iterdir())
