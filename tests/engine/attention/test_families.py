"""The attention of transformers' families beside ours, from what their linears put out to what their last one reads.

A prompt comes in chunks, the rest token by token, over a cache in float32.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import pytest
import torch

from loraplex.engine.attention.backend import CacheShape, Rotary
from loraplex.engine.attention.cpu import cpu_attention
from loraplex.engine.attention.layer import LayerAttention

from .test_cpu import BLOCKS, make_batch, random

TOKENS: Final = 60
STEPS: Final = [(0, 33), (33, 7), *((place, 1) for place in range(40, TOKENS))]
SIZES: Final[dict[str, Any]] = {
    "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2,
    "max_position_embeddings": 128, "attn_implementation": "eager", "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip
LOCAL, GLOBAL = {"layer_types": ["sliding_attention"] * 2}, {"layer_types": ["full_attention"] * 2}
Module = Any


@dataclass(frozen=True)
class Family:
    name: str
    """Of classes; transformers' folder: in lower case."""
    config: str = ""
    """Class of its configuration, where that is not the name's."""
    folder: str = ""
    rotary: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    layer: Callable[[Module], dict[str, Any]] = lambda module: {"scale": module.scaling}
    """Fields of LayerAttention."""
    heads: Callable[[Module], dict[str, Any]] = lambda module: {}
    """Fields of Rotary, besides the tables."""
    takes_type: bool = False
    """Whether its rope goes by the layer's type."""


def head_norms(added: float = 0.0) -> Callable[[Module], dict[str, Any]]:
    return lambda module: {
        "query_norm": module.q_norm.weight.detach() + added,
        "key_norm": module.k_norm.weight.detach() + added,
        "eps": module.config.rms_norm_eps,
    }


def query_scale(module: Module) -> dict[str, Any]:
    model = import_module("transformers.models.ministral3.modeling_ministral3")
    said = module.config.rope_parameters
    numbers = said["llama_4_scaling_beta"], said["original_max_position_embeddings"]
    return {"query_scale": model.get_llama_4_attn_scale(torch.arange(TOKENS)[None], *numbers).flatten()}


def rope(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0} | fields}


GEMMA2 = {"attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 12, "sliding_window": 20}
GEMMA3 = {"sliding_window": 20, "query_pre_attn_scalar": 12, "rope_parameters": {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}}  # fmt: skip
GEMMA4 = {"sliding_window": 20, "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
GPT_OSS = {"sliding_window": 20, "num_local_experts": 2, "num_experts_per_tok": 1}
FAMILIES: Final = {
    "gemma2 local": Family(
        "Gemma2", fields=GEMMA2 | LOCAL,
        layer=lambda module: {"scale": module.scaling, "soft_cap": 1.5, "window": 20},
    ),
    "gemma2 global": Family(
        "Gemma2", fields=GEMMA2 | GLOBAL, layer=lambda module: {"scale": module.scaling, "soft_cap": 1.5}
    ),
    "gemma3 local": Family(
        "Gemma3", "Gemma3TextConfig", fields=GEMMA3 | LOCAL, heads=head_norms(1.0), takes_type=True,
        layer=lambda module: {"scale": module.scaling, "window": 20},
    ),
    "gemma3 global": Family(
        "Gemma3", "Gemma3TextConfig", fields=GEMMA3 | GLOBAL, heads=head_norms(1.0), takes_type=True
    ),
    "gemma4 local": Family(
        "Gemma4Text", folder="gemma4", fields=GEMMA4 | LOCAL, takes_type=True,
        layer=lambda module: {"scale": 1.0, "window": 20},
        heads=lambda module: head_norms()(module) | {"value_norm": True},
    ),
    "gemma4 global": Family(
        "Gemma4Text", folder="gemma4", fields=GEMMA4 | GLOBAL, takes_type=True, layer=lambda module: {"scale": 1.0},
        heads=lambda module: head_norms()(module) | {"value_norm": True},
    ),
    "glm4": Family("Glm4", fields=rope(partial_rotary_factor=0.5), heads=lambda module: {"interleaved": True}),
    "gpt-oss": Family(
        "GptOss", folder="gpt_oss", fields=GPT_OSS | LOCAL,
        layer=lambda module: {"scale": module.scaling, "window": 20, "sinks": True},
    ),
    "granite": Family("Granite", fields={"attention_multiplier": 0.07}),
    "ministral3": Family("Ministral3", heads=query_scale, fields={"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16,
        "max_position_embeddings": 128, "llama_4_scaling_beta": 0.5,
    }}),
    "olmo2": Family("Olmo2", heads=head_norms()),
    "olmo3 local": Family(
        "Olmo3", fields={"sliding_window": 20} | LOCAL, heads=head_norms(), takes_type=True,
        layer=lambda module: {"scale": module.scaling, "window": 20},
    ),
    "phi4": Family("Phi3", fields=rope(partial_rotary_factor=0.75)),
    "qwen3.5": Family(
        "Qwen3_5", "Qwen3_5TextConfig", rotary="Qwen3_5TextRotaryEmbedding", heads=head_norms(1.0),
        fields=GLOBAL | rope(partial_rotary_factor=0.25)
    ),
    "smollm3 without positions": Family("SmolLM3", fields={"no_rope_layers": [0, 0], "use_sliding_window": False}),
    "smollm3 with positions": Family("SmolLM3", fields={"no_rope_layers": [1, 1], "use_sliding_window": False}),
}  # fmt: skip


def open_module(family: Family) -> tuple[Module, Any, Any]:
    """One layer's attention with random weights, its configuration, and the rope's tables as its layer takes them."""
    folder = family.folder or family.name.lower()
    models = import_module(f"transformers.models.{folder}.modeling_{folder}")
    configs = import_module(f"transformers.models.{folder}.configuration_{folder}")
    config = getattr(configs, family.config or f"{family.name}Config")(**SIZES | family.fields)
    module = getattr(models, f"{family.name}Attention")(config, 0).eval()
    for seed, parameter in enumerate(module.parameters()):
        spread = 0.15 if parameter.ndim > 1 else 0.5
        parameter.data = random(*parameter.shape, seed=seed) * spread + (parameter.ndim == 1)
    module.o_proj = torch.nn.Identity()
    rotary = family.rotary or f"{family.name}RotaryEmbedding"
    embedding = getattr(models, rotary)(config)
    places = torch.arange(TOKENS)[None]
    kind = (config.layer_types[0],) if family.takes_type else ()
    return module, config, embedding(torch.zeros(1, TOKENS, 1), places, *kind)


def linears(module: Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(queries, keys and values [T, (H + 2 G) D], what the gate reads)"""
    if hasattr(module, "qkv_proj"):
        return module.qkv_proj(x), None
    query, gate = module.q_proj(x), None
    if type(module).__name__ == "Qwen3_5Attention":
        query, gate = query.view(len(x), -1, 2 * module.head_dim).chunk(2, dim=-1)
        query, gate = query.flatten(1), gate.flatten(1)
    key = module.k_proj(x)
    return torch.cat((query, key, key if module.v_proj is None else module.v_proj(x)), dim=-1), gate


def mask(window: int | None) -> torch.Tensor:
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    seen = (distance >= 0) & (distance < (window or TOKENS))
    return torch.where(seen, 0.0, float("-inf"))[None, None]


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(name: str) -> None:
    family = FAMILIES[name]
    module, config, (cos, sin) = open_module(family)
    heads, size = config.num_attention_heads, module.head_dim
    kind = LayerAttention(
        num_heads=heads, num_kv_heads=heads // module.num_key_value_groups, head_dim=size, **family.layer(module)
    )
    x = random(TOKENS, SIZES["hidden_size"], seed=40)
    given = {"shared_kv_states": {}} if family.folder == "gemma4" else {}
    places = {"position_ids": torch.arange(TOKENS)[None]} if family.name == "Ministral3" else {}
    seen = {"position_embeddings": (cos, sin), "attention_mask": mask(kind.window)}
    expected = module(x[None], **seen, **given, **places)[0][0]

    half = cos.shape[-1] // (1 if family.name == "GptOss" else 2)
    tables = [None if "without" in name else table[0, :, :half].contiguous() for table in (cos, sin)]
    rotary = Rotary(tables[0], tables[1], **family.heads(module))
    sinks = module.sinks.detach() if kind.sinks else None
    cache = cpu_attention(CacheShape(layers=(kind,), num_blocks=BLOCKS, block_size=16, cache_dtype=torch.float32))
    qkv, gate = linears(module, x)
    found = []
    for first, count in STEPS:
        batch = make_batch([(first, count)])
        rows = slice(first, first + count)
        query = cache.rotate_and_write(0, qkv[rows].contiguous(), rotary, batch)
        found.append(cache.attend(0, query, batch, sinks).flatten(1))
    actual = torch.cat(found)
    actual = actual if gate is None else actual * gate.sigmoid()
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=2e-5)
