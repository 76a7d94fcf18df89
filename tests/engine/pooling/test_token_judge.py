"""Rerankers that judge by two tokens, against the logits of transformers and peft."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex import LLM
from tests.checkpoints import make_adapter, make_checkpoint, reference_model

from .classifiers import make_classifier, make_headed_adapter, scores_of

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


ORIGINAL = {"is_original_qwen3_reranker": True}
OVERRIDES = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["n", "y"], **ORIGINAL}


def amend(base: Path, **said: Any) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | said))


@pytest.mark.parametrize("way", ["config", "argument", "override"])
def test_two_tokens_that_are_named_make_the_score(way: str, tmp_path: Path) -> None:
    """As vLLM takes Qwen3-Reranker as first released: the tokenizer joins the pair."""
    base = make_checkpoint(tmp_path / "base", "qwen3", head_dim=32)
    more: dict[str, Any] = {}
    if way == "config":
        amend(base, classifier_from_token=["n", "y"], method="from_2_way_softmax")
    elif way == "argument":
        more = {"classifier_from_token": ["n", "y"]}
    else:
        more = {"hf_overrides": OVERRIDES, "runner": "pooling", "task": "classify"}
    model: Any = reference_model(base, {})
    with LLM(base, **more, **SETTINGS) as llm:
        scores = [output.outputs.score for output in llm.score("a fox", DOCUMENTS, use_tqdm=False)]
        pairs = [llm.tokenizer.encode_pair("a fox", document) for document in DOCUMENTS]
        false_token, true_token = (llm.tokenizer.token_id(token) for token in ("n", "y"))
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0, -1] for ids in pairs]
    wanted = [float(torch.sigmoid(row[true_token] - row[false_token])) for row in logits]
    assert scores == pytest.approx(wanted, abs=1e-4) and len(set(scores)) == 3


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (OVERRIDES | {"rope_theta": 1}, "rope_theta is not supported: change config.json"),
        (OVERRIDES | {"classifier_from_token": ["n"]}, r"must be two tokens, the false one and the true one, got \["),
        (OVERRIDES | {"classifier_from_token": "n"}, "must be two tokens"),
        (OVERRIDES | {"is_original_qwen3_reranker": False}, "is read with is_original_qwen3_reranker: True or method"),
        (OVERRIDES | {"architectures": ["LlamaForCausalLM"]}, "may only name one ForSequenceClassification"),
        (ORIGINAL, "must be two tokens, the false one and the true one, got None"),
        (OVERRIDES | {"classifier_from_token": ["n", "zzz"]}, "names 'zzz', which is no token of the model"),
        ("no,yes", "must be an object"),
    ],
)
def test_overrides_that_mean_something_else_are_refused(overrides: Any, words: str, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen3", head_dim=32)
    with pytest.raises(ValueError, match=words):
        LLM(base, hf_overrides=overrides, **SETTINGS)


def test_a_head_of_its_own_is_not_replaced(tmp_path: Path) -> None:
    base = make_classifier(tmp_path / "base", "qwen3", classes=1)
    amend(base, classifier_from_token=["n", "y"], **ORIGINAL)
    with LLM(base, **SETTINGS) as llm:
        [score] = llm.score("a fox", "a dog", use_tqdm=False)
        pair = llm.tokenizer.encode_pair("a fox", "a dog")
    assert score.outputs.score == pytest.approx(float(torch.sigmoid(scores_of(base, [pair])[0, 0])), abs=1e-4)
    with pytest.raises(ValueError, match="this one has one"):
        LLM(base, classifier_from_token=("n", "y"), **SETTINGS)
