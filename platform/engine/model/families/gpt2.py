"""GPT-2: learned positions, fused queries, keys and values, and linears stored the other way round (Conv1D)."""

from typing import Final

from ..description.config_fields import Raw, activation, flag, layers_alike, number, positive
from ..description.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    HeadSpec,
    LayerSpec,
    LinearSpec,
    ModelSpec,
    NormSpec,
    token_classifier,
)
from .family import Family

OTHER_NAMES: Final = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
}
"""transformers reads a field by both, and takes the one that comes last."""


def _describe(raw: Raw, name: str) -> ModelSpec:
    _refuse_two_numbers(raw)
    size, eps = positive(raw, "n_embd"), number(raw, "layer_norm_epsilon", 1e-5)
    count = layers_alike(dict(raw) | {"num_hidden_layers": raw.get("n_layer")})
    if flag(raw, "add_cross_attention"):
        raise ValueError("add_cross_attention is not supported: a decoder beside an encoder")
    return ModelSpec(
        hidden_size=size,
        embedding=EmbeddingSpec(
            path="transformer.wte", vocab_size=positive(raw, "vocab_size"), size=size, positions="transformer.wpe"
        ),
        layers=tuple(_layer(raw, size, eps, layer) for layer in range(count)),
        norm=NormSpec("transformer.ln_f", size, eps, is_layer_norm=True),
        head=HeadSpec(is_tied=flag(raw, "tie_word_embeddings", True)),
        token_classifier=token_classifier("classifier", size),
        layers_path="transformer.h",
        derived=(".attn.bias", ".attn.masked_bias"),
    )


def _refuse_two_numbers(raw: Raw) -> None:
    for name, other in OTHER_NAMES.items():
        if raw.get(other) not in (None, raw.get(name)):
            raise ValueError(
                f"{other} is {raw[other]!r} and {name} {raw.get(name)!r}, two names of one number; give one"
            )


def _layer(raw: Raw, size: int, eps: float, layer: int) -> LayerSpec:
    num_heads, inner = positive(raw, "n_head"), positive(raw, "n_inner", 4 * size)
    if size % num_heads:
        raise ValueError(f"n_embd {size} is not a multiple of n_head {num_heads}")
    scale = (size // num_heads) ** -0.5 if flag(raw, "scale_attn_weights", True) else 1.0
    return LayerSpec(
        mixer=AttentionSpec(
            inputs=(LinearSpec("attn.c_attn", size, 3 * size, has_bias=True, is_transposed=True),),
            output=LinearSpec("attn.c_proj", size, size, has_bias=True, is_transposed=True),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=size // num_heads,
            scale=scale / (layer + 1) if flag(raw, "scale_attn_by_inverse_layer_idx") else scale,
            rope=None,
        ),
        feed_forward=FeedForwardSpec(
            inputs=(LinearSpec("mlp.c_fc", size, inner, has_bias=True, is_transposed=True),),
            output=LinearSpec("mlp.c_proj", inner, size, has_bias=True, is_transposed=True),
            activation=activation(raw, "activation_function", "gelu_new"),
            is_gated=False,
        ),
        mixer_norm=NormSpec("ln_1", size, eps, is_layer_norm=True),
        feed_forward_norm=NormSpec("ln_2", size, eps, is_layer_norm=True),
    )


FAMILY: Final = Family(
    names=("GPT2",),
    describe=_describe,
    hub={"GPT2": ("openai-community/gpt2",)},
    length_field="n_positions",
    other_names={"GPT2LMHeadModel": ("GPT2", "generate")},
)
