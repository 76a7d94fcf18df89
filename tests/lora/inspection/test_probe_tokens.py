"""Which tokens a prompt must hold to show what an adapter does to single ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loraplex.lora.inspection.inspection import inspect_adapter

from ..adapters import BASE, Tensors, encode, make_config, make_tensors, write_adapter

RANDOM = np.random.default_rng(3)
OWN = RANDOM.normal(size=(320, 16)).astype(np.float32)
EMBEDDING, HEAD = "base_model.model.model.embed_tokens", "base_model.model.lm_head"


def but_for(array: Any, rows: Mapping[int, float]) -> Any:
    copy = array.copy()
    for row, change in rows.items():
        copy[row] += change
    return copy


def found_tokens(folder: Path, config: dict[str, Any], tensors: Tensors, own: bool = True) -> tuple[int, ...]:
    base = folder / "base"
    base.mkdir()
    weights = {"model.embed_tokens.weight": OWN, "lm_head.weight": OWN}
    (base / "model.safetensors").write_bytes(encode(weights))
    write_adapter(folder, config, make_tensors() | tensors)
    inspection = inspect_adapter(
        json.dumps(config).encode(), folder / "adapter_model.safetensors", BASE, base if own else None
    )
    assert inspection.manifest is not None, inspection.failures()
    return inspection.manifest.probe_tokens


def targets(*kinds: str, **more: Any) -> dict[str, Any]:
    return make_config(target_modules=["q_proj", "down_proj", *kinds], **more)


def test_an_adapter_of_layers_alone_needs_none(tmp_path: Path) -> None:
    assert found_tokens(tmp_path, make_config(), {}) == ()


def test_lora_of_the_ends_by_weight(tmp_path: Path) -> None:
    a = but_for(np.zeros((320, 4), np.float32), {7: 0.1, 200: -0.5, 33: 0.2}).T.copy()
    b = but_for(np.zeros((320, 4), np.float32), {9: 0.1, 319: -0.5})
    tensors = {
        f"{EMBEDDING}.lora_embedding_A": a,
        f"{EMBEDDING}.lora_embedding_B": np.ones((16, 4), np.float32),
        f"{HEAD}.lora_A.weight": np.ones((4, 16), np.float32),
        f"{HEAD}.lora_B.weight": b,
    }
    assert sorted(found_tokens(tmp_path, targets("embed_tokens", "lm_head"), tensors)) == [7, 9, 33, 200, 319]


@pytest.mark.parametrize("own", [True, False])
def test_saved_rows_that_are_no_copies(tmp_path: Path, own: bool) -> None:
    tensors = {f"{EMBEDDING}.weight": but_for(OWN, {77: 0.5, 300: 0.25})}
    found = found_tokens(tmp_path, make_config(modules_to_save=["embed_tokens"]), tensors, own)
    assert found == ((77, 300) if own else tuple(range(16)))


def test_trained_tokens_and_those_that_the_base_lacks(tmp_path: Path) -> None:
    """Two of the rows are as the base has them, and the last ones are no tokens of the base."""
    tokens = [300, 7, 12, 13, *range(320, 340)]
    rows = np.concatenate([but_for(OWN[[300, 7, 12, 13]], {0: 0.5, 1: 0.5}), np.ones((20, 16), np.float32)])
    tensors = {f"{EMBEDDING}.token_adapter.trainable_tokens_delta": rows}
    tensors |= {f"{HEAD}.token_adapter.trainable_tokens_delta": rows}
    config = make_config(trainable_token_indices={"embed_tokens": tokens, "lm_head": tokens})
    assert found_tokens(tmp_path, config, tensors) == (300, 7)


def test_at_most_16_of_each_tensor_in_turn(tmp_path: Path) -> None:
    few = dict.fromkeys((310, 311), 0.5)
    tensors = {
        f"{EMBEDDING}.weight": but_for(OWN, dict.fromkeys(range(40), 0.5)),
        f"{HEAD}.weight": but_for(OWN, few),
    }
    found = found_tokens(tmp_path, make_config(modules_to_save=["embed_tokens", "lm_head"]), tensors)
    assert len(found) == 16 and set(found) == {310, 311, *range(14)}
