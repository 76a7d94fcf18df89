"""Rerankers that judge by two tokens, against the logits of transformers and peft."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM
from tests.checkpoints import make_adapter, make_checkpoint, reference_model

from .classifiers import make_headed_adapter

SETTINGS: dict[str, Any] = {"num_kv_blocks": 64, "adapter_memory": 4 << 20, "num_threads": 1}
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)
DOCUMENTS = ["a lazy dog", "select name", "again and again"]


def make_judge(folder: Path, false_token: int | None = 8, prompt: str = "", **template: Any) -> Path:
    """As sentence-transformers writes one."""
    base = make_checkpoint(folder, "qwen3", head_dim=32)
    types = ("base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore")
    paths = ("", "1_LogitScore")
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, types, strict=True))
    ]
    (base / "modules.json").write_text(json.dumps(modules))
    (base / "1_LogitScore").mkdir()
    (base / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": 7, "false_token_id": false_token}))
    (base / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"web": prompt}, "default_prompt_name": "web" if prompt else None})
    )
    (base / "sentence_bert_config.json").write_text(json.dumps({"processing_kwargs": {"chat_template": template}}))
    (base / "chat_template.jinja").write_text(TEMPLATE)
    return base


def expected(
    model: Any, tokenizer: Any, query: str, false_token: int | None, prompt: str, generate: bool
) -> list[float]:
    scores = []
    for document in DOCUMENTS:
        system = f"[system]{prompt}</s>" if prompt else ""
        text = f"{system}[query]{query}</s>[document]{document}</s>{'[answer]' if generate else ''}"
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(ids).logits[0, -1]
        scores.append(float(torch.sigmoid(logits[7] - (0 if false_token is None else logits[false_token]))))
    return scores


@pytest.mark.parametrize(
    ("false_token", "prompt", "generate"), [(8, "", False), (8, "Judge the document.", True), (None, "", True)]
)
def test_scores_are_the_sigmoid_of_the_difference(
    false_token: int | None, prompt: str, generate: bool, tmp_path: Path
) -> None:
    base = make_judge(tmp_path / "base", false_token, prompt, **({"add_generation_prompt": True} if generate else {}))
    adapter = make_adapter(tmp_path / "adapter", base)
    model: Any = reference_model(base, {"one": adapter})
    with LLM(base, {"one": adapter}, **SETTINGS) as llm:
        tokenizer = llm.get_tokenizer()
        plain = [output.outputs.score for output in llm.score("a fox", DOCUMENTS, use_tqdm=False)]
        adapted = [output.outputs.score for output in llm.score("a fox", DOCUMENTS, adapter="one", use_tqdm=False)]
    arguments = (tokenizer, "a fox", false_token, prompt, generate)
    with model.disable_adapter():
        assert plain == pytest.approx(expected(model, *arguments), abs=1e-4)
    assert adapted == pytest.approx(expected(model, *arguments), abs=1e-4) and adapted != pytest.approx(plain, abs=1e-4)


def test_an_adapter_that_changes_the_head_is_refused(tmp_path: Path) -> None:
    base = make_judge(tmp_path / "base")
    adapters = {
        "whole": make_adapter(tmp_path / "whole", base, kinds=("q_proj",), modules_to_save=["lm_head"]),
        "added": make_adapter(tmp_path / "added", base, kinds=("q_proj", "lm_head")),
        "own": make_headed_adapter(tmp_path / "own", base, classes=1),
    }
    with LLM(base, adapters, **SETTINGS) as llm:
        for name in ("whole", "added"):
            with pytest.raises(ValueError, match="the adapter changes the lm_head"):
                llm.score("a fox", DOCUMENTS, adapter=name, use_tqdm=False)
        assert len(llm.score("a fox", DOCUMENTS, adapter="own", use_tqdm=False)) == 3
        with pytest.raises(ValueError, match=r"makes no embeddings: .*'LogitScore'"):
            llm.embed("a", use_tqdm=False)


@pytest.mark.parametrize("said", [{"true_token_id": None}, {"true_token_id": 320}, {"true_token_id": "yes"}])
def test_tokens_must_be_named_by_ids(said: dict[str, Any], tmp_path: Path) -> None:
    base = make_judge(tmp_path / "base")
    (base / "1_LogitScore" / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match="LogitScore must name its tokens by ids below 320"):
        LLM(base, **SETTINGS)
