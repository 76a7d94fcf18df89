from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.layer_inputs import inputs_of
from loraplex.engine.model.loader import Checkpoint
from loraplex.engine.quantize.ends import End, embed_tokens
from loraplex.engine.quantize.plain.forward import layer_forward
from loraplex.engine.quantize.streams import Stream
from tests.checkpoints import make_checkpoint, reference_model

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 10},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_and_perplexity_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    folder = make_checkpoint(tmp_path, family, **FAMILIES[family])
    config, checkpoint, reference = ModelConfig.from_folder(folder), Checkpoint(folder), reference_model(folder)
    token_ids = torch.randint(0, 320, (5, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(token_ids, output_hidden_states=True)
    embedding = checkpoint.tensor("model.embed_tokens.weight")
    stream = Stream(token_ids, partial(embed_tokens, config.spec, checkpoint, embedding))
    seen: list[str] = []
    for number in range(config.num_layers):
        layer = layer_forward(config.spec.layers[number], 24)
        prefix = f"model.layers.{number}."
        tensors = {name.removeprefix(prefix): checkpoint.tensor(name) for name in checkpoint if name.startswith(prefix)}
        stream.advance(layer, tensors, lambda place, x: seen.append(place))
    end, cpu = End.read(config.spec, checkpoint, torch.device("cpu")), torch.device("cpu")
    loss = torch.nn.functional.cross_entropy(expected.logits[:, :-1].flatten(0, 1), token_ids[:, 1:].flatten())
    found = stream.perplexity(end, checkpoint.tensor("lm_head.weight"), cpu)
    assert found == pytest.approx(loss.exp().item(), rel=1e-4)
    assert seen == [at.place for layer in range(2) for at in inputs_of(config.spec, layer)]
    assert seen == ["self_attn.qkv", "self_attn.o_proj", "mlp.gate_up", "mlp.down_proj"] * 2
