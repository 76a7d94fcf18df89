"""Vectors and classes of every token against transformers and PEFT, with adapters of mixed kinds in one batch."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import AutoModelForTokenClassification, GPT2Config

from loraplex import LLM, AsyncEngineArgs, AsyncLLM, LoRARequest, PoolingParams
from tests.checkpoints import FAMILIES as DECODERS
from tests.checkpoints import SMALL, make_adapter, make_checkpoint, make_tokenizer, reference_model

from .classifiers import make_headed_adapter
from .encoders import FAMILIES, TARGETS, hidden_of, make_encoder, make_encoder_adapter
from .test_embed import reference_hidden

SETTINGS: dict[str, Any] = {
    "adapter_memory": 4 << 20, "num_threads": 1, "max_num_batched_tokens": 32, "max_num_seqs": 16,
}  # fmt: skip
"""Of decoders, prompts of more than 32 tokens are computed in several steps."""
BLOCKS: dict[str, Any] = {"num_kv_blocks": 64}
PROMPTS = [[4, 5, 6], [7], [3 + place for place in range(50)], [12, 13] * 9, [5 + 7 * n % 290 for n in range(60)]]
RAW = PoolingParams(use_activation=False)
EMBED, CLASSIFY = "token_embed", "token_classify"
LABELS: dict[str, Any] = {
    "id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2},
}  # fmt: skip


def close(found: Any, expected: list[torch.Tensor]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(output.outputs.data.shape == one.shape and torch.allclose(output.outputs.data, one, atol=1e-4)
               for output, one in pairs)  # fmt: skip


def make_token_decoder(folder: Path, family: str, **overrides: Any) -> Path:
    config = DECODERS[family](**(SMALL | LABELS | overrides))
    return _save(AutoModelForTokenClassification.from_config(config), folder)


def _save(model: Any, folder: Path) -> Path:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    return make_tokenizer(folder)


def make_token_adapter(folder: Path, base: Path, targets: list[str], classes: int, seed: int = 1, **own: Any) -> Path:
    """As PEFT trains it for TOKEN_CLS: a LoRA, and a head of its own."""
    config = LoraConfig(**({"r": 4, "target_modules": targets, "task_type": "TOKEN_CLS"} | own))
    adapted = get_peft_model(load(base, classes), config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(folder)
    return folder


def load(base: Path, classes: int = 3) -> Any:
    return AutoModelForTokenClassification.from_pretrained(
        base, num_labels=classes, dtype=torch.float32, ignore_mismatched_sizes=True
    ).eval()


def scores_of(base: Path, prompts: list[list[int]], adapter: Path | None = None, classes: int = 3) -> Any:
    """[tokens, classes] of each prompt, without an activation."""
    model = load(base, classes)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_of_an_encoders_tokens(family: str, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", family)
    adapter = make_encoder_adapter(tmp_path / "one", base, family)
    plain = PoolingParams(normalize=False)
    with LLM(base, {"one": adapter}, **SETTINGS) as llm:
        scaled = llm.encode(PROMPTS, pooling_task=EMBED, use_tqdm=False)
        found = llm.encode(PROMPTS * 2, plain, pooling_task=EMBED, adapter=[None] * 5 + ["one"] * 5, use_tqdm=False)
        [short] = llm.encode([PROMPTS[0]], PoolingParams(dimensions=8), pooling_task=EMBED, use_tqdm=False)
        [new_name] = llm.encode([PROMPTS[0]], RAW, pooling_task=EMBED, use_tqdm=False)
    expected = hidden_of(base, PROMPTS) + hidden_of(base, PROMPTS, adapter)
    assert close(found, expected) and close(scaled, [normalize(one, dim=1) for one in expected[:5]])
    assert close([short], [normalize(expected[0][:, :8], dim=1)])
    assert torch.equal(new_name.outputs.data, found[0].outputs.data)


def test_vectors_of_a_decoders_tokens_in_chunks_and_behind_a_cached_prefix(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", head_dim=32)
    adapters = {"one": make_adapter(tmp_path / "one", base)}
    reference = reference_model(base, adapters)
    names: list[str | None] = [None, "one", "one", None, "one"]
    with LLM(base, adapters, **SETTINGS, **BLOCKS) as llm:
        first = llm.encode(PROMPTS, pooling_task=EMBED, adapter=names, use_tqdm=False)
        again = llm.encode(PROMPTS, pooling_task=EMBED, adapter=names, use_tqdm=False)
    expected = [reference_hidden(reference, prompt, name) for prompt, name in zip(PROMPTS, names, strict=True)]
    for found in (first, again):
        assert close(found, [normalize(one.float(), dim=1) for one in expected])
        assert all(output.num_cached_tokens == 0 for output in found)


def test_what_gives_way_for_lack_of_blocks_begins_anew(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    prompts = [[3 + (place * number) % 200 for place in range(60)] for number in range(1, 6)]
    with LLM(base, **SETTINGS, **BLOCKS) as llm:
        expected = [output.outputs.data for output in llm.encode(prompts, pooling_task=EMBED, use_tqdm=False)]
    with LLM(base, **SETTINGS, num_kv_blocks=9) as llm:
        found = llm.encode(prompts, pooling_task=EMBED, use_tqdm=False)
    assert close(found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_of_an_encoders_tokens(family: str, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", family, "tokens", **LABELS)
    adapters = {
        "four": make_token_adapter(tmp_path / "four", base, TARGETS[family], 4),
        "two": make_token_adapter(tmp_path / "two", base, TARGETS[family], 2, seed=2, use_dora=True),
    }
    names = ["four", "two", "four", "two", "two"]
    with LLM(base, adapters, **SETTINGS) as llm:
        assert llm.info.classes is not None and llm.info.classes.labels == ["O", "B-PER", "I-PER"]
        own = llm.encode(PROMPTS, RAW, pooling_task=CLASSIFY, use_tqdm=False)
        likely = llm.encode(PROMPTS, pooling_task=CLASSIFY, use_tqdm=False)
        headed = llm.encode(PROMPTS, RAW, pooling_task=CLASSIFY, adapter=names, use_tqdm=False)
        vectors = llm.encode(PROMPTS, PoolingParams(normalize=False), pooling_task=EMBED, use_tqdm=False)
    expected = scores_of(base, PROMPTS)
    assert close(own, expected) and close(likely, [one.softmax(dim=1) for one in expected])
    assert close(vectors, hidden_of(base, PROMPTS))
    by_name = {name: scores_of(base, PROMPTS, adapters[name], 4 if name == "four" else 2) for name in adapters}
    assert close(headed, [by_name[name][place] for place, name in enumerate(names)])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_classes_of_a_decoders_tokens(family: str, tmp_path: Path) -> None:
    base = make_token_decoder(tmp_path / "base", family)
    adapter = make_token_adapter(tmp_path / "five", base, ["q_proj", "down_proj"], 5)
    request = LoRARequest("five", 1, str(adapter))
    with LLM(base, **SETTINGS, **BLOCKS) as llm:
        own = llm.encode(PROMPTS, RAW, pooling_task=CLASSIFY, use_tqdm=False)
        headed = llm.encode(PROMPTS, RAW, pooling_task=CLASSIFY, lora_request=request, use_tqdm=False)
        with pytest.raises(ValueError, match="this model classifies tokens and generates no text"):
            llm.generate("a", use_tqdm=False)
    assert close(own, scores_of(base, PROMPTS)) and close(headed, scores_of(base, PROMPTS, adapter, 5))


def test_gpt2_calls_its_head_otherwise(tmp_path: Path) -> None:
    config = GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=320, n_positions=128, num_labels=3)
    base = _save(AutoModelForTokenClassification.from_config(config), tmp_path / "base")
    with LLM(base, **SETTINGS, **BLOCKS) as llm:
        assert close(llm.encode(PROMPTS, RAW, pooling_task=CLASSIFY, use_tqdm=False), scores_of(base, PROMPTS))


def test_an_old_checkpoint_has_a_pooler_that_nothing_needs(tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert", "tokens", **LABELS)
    expected = scores_of(base, PROMPTS)
    file = base / "model.safetensors"
    unused = {"bert.pooler.dense.weight": torch.ones(64, 64), "bert.pooler.dense.bias": torch.ones(64)}
    save_file(load_file(file) | unused, file, {"format": "pt"})
    with LLM(base, **SETTINGS) as llm:
        assert close(llm.encode(PROMPTS, RAW, pooling_task=CLASSIFY, use_tqdm=False), expected)


def test_what_cannot_be_asked_says_so(tmp_path: Path) -> None:
    with LLM(make_encoder(tmp_path / "tokens", "bert", "tokens"), **SETTINGS) as llm:
        for ask in (llm.classify, lambda prompt, **rest: llm.score(prompt, "b", **rest)):
            with pytest.raises(ValueError, match="tells the classes of single tokens, and none of a whole text"):
                ask("a", use_tqdm=False)
        with pytest.raises(ValueError, match="dimensions is for embeddings"):
            llm.encode("a", PoolingParams(dimensions=2), pooling_task=CLASSIFY, use_tqdm=False)
        with pytest.raises(ValueError, match="normalize and use_activation are the same of embeddings"):
            llm.encode("a", PoolingParams(normalize=True, use_activation=False), pooling_task=EMBED, use_tqdm=False)
    for folder in (make_encoder(tmp_path / "whole", "bert", "classify"), make_checkpoint(tmp_path / "text")):
        with (
            LLM(folder, **SETTINGS) as llm,
            pytest.raises(ValueError, match=r"made for them \(ForTokenClassification\)"),
        ):
            llm.encode("a", pooling_task=CLASSIFY, use_tqdm=False)


@pytest.mark.parametrize("trained_without_a_task", [False, True])
def test_adapters_for_the_other_kind_of_classes_are_refused(trained_without_a_task: bool, tmp_path: Path) -> None:
    """Of BERT, both heads have the same names and shapes."""
    base = make_encoder(tmp_path / "base", "bert", "embed")
    adapter = make_token_adapter(tmp_path / "tokens", base, TARGETS["bert"], 4)
    if trained_without_a_task:
        config = json.loads((adapter / "adapter_config.json").read_text())
        mapping = {"base_model_class": "BertForTokenClassification", "parent_library": "transformers.models.bert"}
        config |= {"task_type": None, "auto_mapping": mapping}
        (adapter / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=re.escape("it classifies tokens, and the base does not")):
        LLM(base, {"tokens": adapter}, **SETTINGS)
    text = make_checkpoint(tmp_path / "text")
    with pytest.raises(ValueError, match="it classifies whole texts, and the base classifies tokens"):
        headed = make_headed_adapter(tmp_path / "headed", text)
        LLM(make_token_decoder(tmp_path / "decoder", "llama"), {"headed": headed}, **SETTINGS)


async def test_the_async_engine_tells_the_same(tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert", "tokens", **LABELS)
    async with AsyncLLM(AsyncEngineArgs(base, **SETTINGS)) as engine:
        params = PoolingParams(task=CLASSIFY, use_activation=False)
        outputs = [output async for output in engine.encode({"prompt_token_ids": PROMPTS[3]}, params, "a")]
    assert close(outputs, scores_of(base, [PROMPTS[3]]))
