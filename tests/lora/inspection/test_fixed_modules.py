"""Adapters of modules that the base has and no adapter changes here: the refusal names each, and its advice works."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from tests.engine.model.families.parity import make_base
from tests.engine.model.families.test_gemma4 import CONFIGS
from tests.engine.pooling.encoders import make_encoder
from tests.lora.files.test_base_tensors import WEIGHTS, change_one, refusals, save

BEFORE_HEAD, PLACES = "a linear between the vector of a text and the head for classes", "position_embeddings"
TASKS: dict[str, Any] = {
    "FEATURE_EXTRACTION": AutoModel,
    "SEQ_CLS": AutoModelForSequenceClassification,
    None: AutoModelForMaskedLM,
}


def adapter(folder: Path, base: Path, task: str | None, **settings: Any) -> Path:
    model = TASKS[task].from_pretrained(base, ignore_mismatched_sizes=True)
    get_peft_model(model, LoraConfig(r=4, task_type=task, **settings)).save_pretrained(folder)
    return folder


def trained(folder: Path, wanted: Callable[[str], bool] = lambda name: "lora_B" in name) -> Path:
    change_one(folder, wanted)
    return folder


@pytest.mark.parametrize(
    ("family", "task", "targets", "excluded", "words"),
    [
        ("bert", "FEATURE_EXTRACTION", ["dense"], ["pooler.dense"], BEFORE_HEAD),
        ("bert", "SEQ_CLS", ["query", "dense"], ["pooler.dense"], BEFORE_HEAD),
        ("roberta", "FEATURE_EXTRACTION", ["dense"], ["pooler.dense"], "a pooler that no answer needs"),
        ("modernbert", "SEQ_CLS", ["Wqkv", "dense"], ["head.dense"], BEFORE_HEAD),
        ("bert", None, ["query", "decoder"], ["cls.predictions.decoder"], "the head that predicts masked tokens"),
        ("bert", "FEATURE_EXTRACTION", ["value", PLACES], [f"embeddings.{PLACES}"], "a table of positions"),
    ],
)
def test_lora_on_them(
    family: str, task: str | None, targets: list[str], excluded: list[str], words: str, tmp_path: Path
) -> None:
    made = {"FEATURE_EXTRACTION": "embed", "SEQ_CLS": "classify"}.get(task or "", "masked")
    base, settings = make_encoder(tmp_path / "base", family, made), {"target_modules": targets}
    [message] = refusals(trained(adapter(tmp_path / "one", base, task, **settings)), base)
    advice = f"train with exclude_modules={excluded!r}", f"train without {excluded[0].partition('.')[0]}, by "
    assert words in message and any(one in message for one in advice)
    again = adapter(tmp_path / "again", base, task, **settings, exclude_modules=excluded)
    assert refusals(trained(again), base) == []


def test_norms_of_the_embedding(tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert")
    settings: dict[str, Any] = {"task": "FEATURE_EXTRACTION", "target_modules": ["query"]}
    whole = trained(adapter(tmp_path / "one", base, **settings, modules_to_save=["LayerNorm"]))
    [message] = refusals(whole, base)
    assert "embeddings.LayerNorm" in message and "a norm of the embedding" in message
    assert message.endswith("leave embeddings.LayerNorm out of modules_to_save, and do not train with bias='all'")
    again = adapter(tmp_path / "again", base, **settings, modules_to_save=["output.LayerNorm"])
    assert refusals(trained(again), base) == []


def test_the_embedding_of_each_layer(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", CONFIGS["like-E2B"])
    targets = ["q_proj", "embed_tokens_per_layer"]
    config = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=targets)
    [message] = refusals(trained(save(tmp_path / "one", base, config)), base)
    assert "the embedding of each token for each layer" in message
    assert message.endswith("train with exclude_modules=['embed_tokens_per_layer']")
    config = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=targets, exclude_modules=["embed_tokens_per_layer"])
    assert refusals(trained(save(tmp_path / "again", base, config)), base) == []
    assert (tmp_path / "again" / WEIGHTS).is_file()
