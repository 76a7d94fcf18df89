"""LLM.classify and LLM.score against transformers and peft: heads of bases, and of adapters on either kind of base."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from loraplex import LLM, LoRARequest, PoolingParams, SamplingParams
from tests.checkpoints import make_adapter, make_checkpoint

from .classifiers import make_classifier, make_headed_adapter, scores_of
from .modules_file import write_modules

SETTINGS: dict[str, Any] = {
    "num_kv_blocks": 64, "adapter_memory": 4 << 20, "num_threads": 1, "max_num_batched_tokens": 32, "max_num_seqs": 16,
}  # fmt: skip
PROMPTS = [[4, 5, 6], [7], [3 + place for place in range(50)], [12, 13] * 9]
RAW = PoolingParams(use_activation=False)


def told(outputs: Any) -> torch.Tensor:
    return torch.tensor([output.outputs.probs for output in outputs])


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_base_with_a_head(family: str, tmp_path: Path) -> None:
    labels = {"id2label": {0: "bad", 1: "so-so", 2: "good"}, "label2id": {"bad": 0, "so-so": 1, "good": 2}}
    base = make_classifier(tmp_path / "base", family, **labels)
    expected = scores_of(base, PROMPTS)
    with LLM(base, **SETTINGS) as llm:
        assert llm.info.classes is not None and llm.info.classes.labels == ["bad", "so-so", "good"]
        raw = told(llm.classify(PROMPTS, pooling_params=RAW, use_tqdm=False))
        probabilities = told(llm.classify(PROMPTS, use_tqdm=False))
        with pytest.raises(ValueError, match="prompt 0: this model classifies and generates no text"):
            llm.generate("a", SamplingParams(), use_tqdm=False)
    assert torch.allclose(raw, expected, atol=1e-4) and torch.allclose(
        probabilities, expected.softmax(dim=1), atol=1e-4
    )


@pytest.mark.parametrize(
    ("problem", "classes", "activation"),
    [
        ("multi_label_classification", 3, torch.sigmoid),
        ("regression", 1, lambda it: it),
        (None, 1, torch.sigmoid),
        ("single_label_classification", 2, lambda it: it.softmax(dim=1)),
    ],
)
def test_activations_follow_the_problem(problem: str | None, classes: int, activation: Any, tmp_path: Path) -> None:
    base = make_classifier(tmp_path / "base", classes=classes, problem_type=problem)
    with LLM(base, **SETTINGS) as llm:
        found = told(llm.classify(PROMPTS, use_tqdm=False))
    assert torch.allclose(found, activation(scores_of(base, PROMPTS)), atol=1e-4)


@pytest.mark.parametrize("base_classifies", [False, True], ids=["causal base", "classifying base"])
def test_adapters_bring_heads_of_their_own(base_classifies: bool, tmp_path: Path) -> None:
    base = make_classifier(tmp_path / "base") if base_classifies else make_checkpoint(tmp_path / "base")
    adapters = {
        "four": make_headed_adapter(tmp_path / "four", base),
        "two": make_headed_adapter(tmp_path / "two", base, classes=2, seed=2, use_dora=True),
    }
    asked: list[str | None] = ["four", "two", "four", "two"]
    with LLM(base, adapters, **SETTINGS) as llm:
        outputs = llm.classify(PROMPTS, adapter=asked, pooling_params=RAW, use_tqdm=False)
        again = llm.classify(PROMPTS, adapter=asked, use_tqdm=False)
        [requested] = llm.classify([PROMPTS[2]], lora_request=LoRARequest("x", 1, str(adapters["four"])))
        own = told(llm.classify(PROMPTS, pooling_params=RAW, use_tqdm=False)) if base_classifies else None
    for number, (prompt, name, output) in enumerate(zip(PROMPTS, asked, outputs, strict=True)):
        assert name is not None
        [expected] = scores_of(base, [prompt], adapters[name], 4 if name == "four" else 2)
        assert torch.allclose(torch.tensor(output.outputs.probs), expected, atol=1e-4), (number, name)
        assert torch.allclose(torch.tensor(again[number].outputs.probs), expected.softmax(dim=0), atol=1e-4)
        assert output.outputs.num_classes == len(expected)
    assert requested.outputs == again[2].outputs
    if own is not None:
        assert torch.allclose(own, scores_of(base, PROMPTS), atol=1e-4)


def test_what_cannot_classify_says_so(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    plain, headed = make_adapter(tmp_path / "plain", base), make_headed_adapter(tmp_path / "headed", base)
    with LLM(base, {"plain": plain, "headed": headed, "other": headed}, **SETTINGS) as llm:
        with pytest.raises(ValueError, match="neither the base nor the adapter has a classification head"):
            llm.classify("a", use_tqdm=False)
        with pytest.raises(ValueError, match="neither the base nor the adapter has a classification head"):
            llm.classify("a", adapter="plain", use_tqdm=False)
        with pytest.raises(ValueError, match="dimensions is for embeddings"):
            llm.classify("a", pooling_params=PoolingParams(dimensions=3), use_tqdm=False)
        with pytest.raises(ValueError, match="has 4 classes, and a score is made of one"):
            llm.score("a", "b", adapter="headed", use_tqdm=False)
        assert llm.generate("a", SamplingParams(max_tokens=2), adapter="headed", use_tqdm=False)[0].outputs[0].text


def test_two_heads_are_not_added_up(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    adapters = {f"a{seed}": make_headed_adapter(tmp_path / str(seed), base, seed=seed) for seed in (1, 2)}
    adapters["plain"] = make_adapter(tmp_path / "plain", base)
    with LLM(base, adapters, **SETTINGS) as llm:
        with pytest.raises(ValueError, match="several of the adapters have a classification head"):
            llm.classify("a", adapter={"a1": 1.0, "a2": 1.0}, use_tqdm=False)
        [both] = llm.classify("a", adapter={"a1": 1.0, "plain": 0.5}, use_tqdm=False)
        [alone] = llm.classify("a", adapter="a1", use_tqdm=False)
    assert both.outputs.num_classes == 4 and both.outputs.probs != alone.outputs.probs


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base_model.model.score.weight": torch.ones(4, 63)}, "score is [4, 63], not [classes, 64]"),
        ({"base_model.model.score.weight": torch.full((4, 64), torch.nan)}, "NaN"),
        ({"base_model.model.score.weight": None}, "modules_to_save names score, which is not in the file"),
        ({"base_model.model.score.modules_to_save.weight": torch.ones(4, 64)}, "score has 2 tensors"),
        ({"base_model.model.score.bias": torch.ones(4)}, "not the bias of a linear layer"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    folder = make_headed_adapter(tmp_path / "headed", base)
    file = folder / "adapter_model.safetensors"
    tensors = {name: value for name, value in (load_file(file) | change).items() if value is not None}
    save_file(tensors, file)
    with pytest.raises(ValueError, match=re.escape(words)):
        LLM(base, {"headed": folder}, **SETTINGS)


def test_scores_of_a_cross_encoder_and_of_embeddings(tmp_path: Path) -> None:
    query, documents = "the quick fox", ["a lazy dog", "select name", "again and again"]
    base = make_classifier(tmp_path / "cross", classes=1)
    with LLM(base, **SETTINGS) as llm:
        scores = llm.score(query, documents, use_tqdm=False)
        pairs = [llm.get_tokenizer()(query, document)["input_ids"] for document in documents]
    expected = scores_of(base, pairs).sigmoid()[:, 0]
    assert torch.allclose(torch.tensor([out.outputs.score for out in scores]), expected, atol=1e-4)
    assert [output.prompt_token_ids for output in scores] == pairs
    causal = make_checkpoint(tmp_path / "causal")
    adapter = make_headed_adapter(tmp_path / "judge", causal, classes=1)
    with LLM(causal, {"judge": adapter}, **SETTINGS) as llm:
        embeddings = [torch.tensor(out.outputs.embedding) for out in llm.embed([query, *documents], use_tqdm=False)]
        scores = llm.score([query], documents, use_tqdm=False)
        judged = llm.score([query] * 3, documents, adapter="judge", use_tqdm=False)
        pairs = [llm.get_tokenizer()(query, document)["input_ids"] for document in documents]
        with pytest.raises(ValueError, match="2 texts cannot be paired with 3"):
            llm.score([query] * 2, documents)
        with pytest.raises(ValueError, match="there is no text to score"):
            llm.score(query, [])
    cosines = [float(torch.cosine_similarity(embeddings[0], other, dim=0)) for other in embeddings[1:]]
    assert [output.outputs.score for output in scores] == pytest.approx(cosines, abs=1e-5)
    expected = scores_of(causal, pairs, adapter, 1).sigmoid()[:, 0]
    assert torch.allclose(torch.tensor([out.outputs.score for out in judged]), expected, atol=1e-4)


def test_models_without_a_head_embed_under_either_name_of_their_tensors(tmp_path: Path) -> None:
    """As sentence-transformers stores them: the body alone, without `model.` before its names."""
    causal = make_checkpoint(tmp_path / "causal", "qwen3")
    body = AutoModel.from_pretrained(causal)
    body.save_pretrained(tmp_path / "body")
    for file in causal.glob("*token*"):
        (tmp_path / "body" / file.name).write_bytes(file.read_bytes())
    assert any(name.startswith("layers.") for name in load_file(tmp_path / "body" / "model.safetensors"))
    prefixed = tmp_path / "prefixed"
    prefixed.mkdir()
    for file in causal.iterdir():
        (prefixed / file.name).write_bytes(file.read_bytes())
    tensors = load_file(causal / "model.safetensors")
    tensors.pop("lm_head.weight")
    save_file(tensors, prefixed / "model.safetensors", metadata={"format": "pt"})
    for folder in (tmp_path / "body", prefixed):
        write_modules(folder, "lasttoken", normalized=True)
        with LLM(folder, **SETTINGS) as llm:
            found = [torch.tensor(output.outputs.embedding) for output in llm.embed(PROMPTS, use_tqdm=False)]
            with pytest.raises(ValueError, match="makes embeddings and generates no text"):
                llm.generate("a", use_tqdm=False)
        for prompt, vector in zip(PROMPTS, found, strict=True):
            with torch.no_grad():
                hidden = body(torch.tensor([prompt])).last_hidden_state[0, -1]
            assert torch.allclose(vector, torch.nn.functional.normalize(hidden, dim=0), atol=1e-5)
