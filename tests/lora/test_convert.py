"""AdaLoRA, LoHa, LoKr and VeRA as LoRA, against PEFT itself: the change of each weight, the logits, the tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.model.config import base_signature
from tests.checkpoints import make_checkpoint, reference_model

from .adapters import read_manifest
from .other_kinds import DOWN_1, Q_0, Q_1, adalora, changes_of, converted, loha, lokr, save_random, vera

EXACT = 1e-5
NEW_TOKENS = 12
LAST_TWO = [False, False, False, False, True, True]

CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "adalora": (adalora, {}, "exactly, at rank 6"),
    "adalora-rank1-no-alpha": (adalora, {"init_r": 1, "target_r": 1, "lora_alpha": -1}, "exactly, at rank 1"),
    "loha": (loha, {}, "exactly, at rank 16"),
    "loha-rank1-one-layer": (loha, {"r": 1, "layers_to_transform": [1]}, "exactly, at rank 1"),
    "loha-more-pairs-than-outputs": (loha, {"r": 10, "alpha": -7}, "exactly, at ranks 16 to 64"),
    "loha-patterns": (
        loha,
        {"rank_pattern": {"q_proj": 3, DOWN_1: 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 30}},
        "exactly, at ranks 4 to 16",
    ),
    "lokr-products": (lokr, {"decompose_both": True}, "exactly, at rank 4"),
    "lokr-whole-and-product": (lokr, {"decompose_factor": 4}, "exactly, at ranks 4 to 8"),
    "lokr-whole": (lokr, {"r": 40, "decompose_factor": 2}, "exactly, at ranks 16 to 64"),
    "lokr-patterns": (
        lokr,
        {"rank_pattern": {"down_proj": 3}, "alpha_pattern": {"q_proj": -1.5}, "target_modules": ["q_proj", "down_proj"]},
        "exactly, at ranks 4 to 12",
    ),
    "vera": (vera, {}, "exactly, at rank 5"),
    "vera-wider-than-some": (vera, {"r": 30, "target_modules": ["k_proj", "down_proj"]}, "exactly, at ranks 16 to 30"),
}


@pytest.fixture(scope="module", params=["even", "odd"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    odd = {"hidden_size": 60, "intermediate_size": 105, "head_dim": 16, "num_key_value_heads": 1}
    return make_checkpoint(tmp_path_factory.mktemp("base") / request.param, **(odd if request.param == "odd" else {}))


def worst_difference(one: Path, other: Path, base: Path) -> float:
    """The largest relative Frobenius difference of two adapters' changes of a weight."""
    first, second = changes_of(one, base), changes_of(other, base)
    assert set(second) == {path for path, change in first.items() if change.any()}
    return max(float(torch.dist(first[path], second[path]) / first[path].norm()) for path in second)


@pytest.mark.parametrize("case", CASES)
def test_peft_reads_the_same_change_of_every_weight(base: Path, case: str, tmp_path: Path) -> None:
    make, settings, words = CASES[case]
    folder, target = save_random(make(**settings), base, tmp_path / "old"), tmp_path / "new"
    (finding,) = converted(folder, base, target)
    print(finding, worst_difference(folder, target, base), read_manifest(target, base_signature(base)))
