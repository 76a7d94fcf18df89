"""EmbeddingGemma: a decoder's layers whose tokens see those behind them too, Dense modules behind the pooling."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from transformers import AutoModel, Gemma3TextConfig

from loraplex import LLM, PoolingParams, SamplingParams
from tests.checkpoints import make_tokenizer

SETTINGS: dict[str, Any] = {"adapter_memory": 4 << 20, "num_threads": 1, "max_num_seqs": 8}
PROMPTS = [[4, 5, 6], [7], [3 + place for place in range(50)], [12, 13] * 9]
TEXTS = ["The quick brown fox", "again and again " * 9, "Zürich 😀"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    config = Gemma3TextConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=24,
        sliding_window=16,
        max_position_embeddings=160,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        use_bidirectional_attention=True,
    )
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(4)
        model = AutoModel.from_config(config)
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.3 if "norm" in name or "embed" in name else 1.2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(tmp_path / "base")
    make_tokenizer(tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").unlink()  # sentence-transformers would ask in its form
    return tmp_path / "base"


def make_adapter(folder: Path, base: Path) -> Path:
    model = AutoModel.from_pretrained(base, dtype=torch.float32)
    saved = ["q_norm", "k_norm", "input_layernorm"]
    targets = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(r=4, target_modules=targets, modules_to_save=saved, task_type="FEATURE_EXTRACTION")
    adapted = get_peft_model(model, config)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(5)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(folder)
    return folder


def hidden_of(base: Path, adapter: Path | None = None) -> list[torch.Tensor]:
    model = AutoModel.from_pretrained(base, dtype=torch.float32).eval()
    model = model if adapter is None else PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return [model(torch.tensor([prompt])).last_hidden_state[0] for prompt in PROMPTS]


def test_hidden_states_with_an_adapter_of_norms_in_the_batch(base: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "one", base)
    assert json.loads((base / "config.json").read_text())["sliding_window"] == 16
    plain = PoolingParams(normalize=False)
    with LLM(base, {"one": adapter}, **SETTINGS) as llm:
        assert llm.info.num_blocks == 0 and llm.info.max_model_len == 160
        found = llm.encode(PROMPTS * 2, plain, pooling_task="token_embed", adapter=["one", None] * 4, use_tqdm=False)
        with pytest.raises(ValueError, match="makes embeddings and generates no text"):
            llm.generate("a", SamplingParams(), use_tqdm=False)
    expected = {"one": hidden_of(base, adapter), None: hidden_of(base)}
    for place, output in enumerate(found):
        own = expected["one" if place % 2 == 0 else None][place % 4]
        assert torch.allclose(output.outputs.data, own, atol=1e-4), place


@pytest.mark.parametrize("activation", [torch.nn.Identity(), torch.nn.Tanh(), torch.nn.GELU()])
def test_dense_modules_are_those_of_sentence_transformers(base: Path, activation: Any, tmp_path: Path) -> None:
    body = Transformer(str(base))
    wide = Dense(64, 96, bias=False, activation_function=activation)
    narrow = Dense(96, 48, bias=True, activation_function=torch.nn.Identity())
    made = SentenceTransformer(modules=[body, Pooling(64, "mean"), wide, narrow, Normalize()], device="cpu")
    folder = tmp_path / "made"
    made.save(str(folder), create_model_card=False)
    expected = torch.tensor(SentenceTransformer(str(folder), device="cpu").encode(TEXTS))
    with LLM(folder, **SETTINGS) as llm:
        assert llm.info.pooling is not None and llm.info.pooling.size == 48
        outputs = llm.embed(TEXTS, use_tqdm=False)
        [short] = llm.embed(TEXTS[:1], pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
    assert torch.allclose(torch.tensor([output.outputs.embedding for output in outputs]), expected, atol=1e-5)
    assert short.outputs.hidden_size == 8
    config = folder / "2_Dense" / "config.json"
    said = json.loads(config.read_text())
    for change, words in (
        ({"activation_function": "torch.nn.modules.activation.Sigmoid"}, "activation_function Sigmoid"),
        ({"in_features": 32}, "2_Dense reads 32 numbers, and there are 64"),
        ({"bias": True}, "must have"),
        ({"use_residual": True}, "use_residual in config.json of 2_Dense is not supported"),
    ):
        config.write_text(json.dumps(said | change))
        with pytest.raises(ValueError, match=words), LLM(folder, **SETTINGS) as llm:
            llm.embed("a", use_tqdm=False)
