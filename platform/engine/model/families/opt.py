"""OPT: learned positions, LayerNorms before or after each block, a plain feed-forward with ReLU."""

from typing import Final

from ..description.config_fields import Raw, activation, flag, heads, layers_alike, positive
from ..description.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    HeadSpec,
    LayerSpec,
    LinearSpec,
    ModelSpec,
    NormSpec,
)
from .family import Family

EPS: Final = 1e-5
OFFSET: Final = 2
"""Rows of the table of positions before the first one."""


def _describe(raw: Raw, name: str) -> ModelSpec:
    size, row = positive(raw, "hidden_size"), positive(raw, "word_embed_proj_dim", positive(raw, "hidden_size"))
    is_before = flag(raw, "do_layer_norm_before", True)
    has_last = is_before and not flag(raw, "_remove_final_layer_norm")
    if not flag(raw, "layer_norm_elementwise_affine", True):
        raise ValueError("layer_norm_elementwise_affine false is not supported: norms without weights")
    projects = row != size
    return ModelSpec(
        hidden_size=size,
        embedding=EmbeddingSpec(
            path="model.decoder.embed_tokens",
            vocab_size=positive(raw, "vocab_size"),
            size=row,
            positions="model.decoder.embed_positions",
            position_offset=OFFSET,
            projection=LinearSpec("model.decoder.project_in", row, size) if projects else None,
        ),
        layers=(_layer(raw, size, is_before),) * layers_alike(raw),
        norm=_norm("model.decoder.final_layer_norm", size) if has_last else None,
        head=HeadSpec(
            is_tied=flag(raw, "tie_word_embeddings", True),
            projection=LinearSpec("model.decoder.project_out", size, row) if projects else None,
        ),
        layers_path="model.decoder.layers",
        renamed={"decoder.": "model.decoder."},
    )


def _layer(raw: Raw, size: int, is_before: bool) -> LayerSpec:
    num_heads, _ = heads(raw)
    has_bias, inner = flag(raw, "enable_bias", True), positive(raw, "ffn_dim")
    return LayerSpec(
        mixer=AttentionSpec(
            inputs=tuple(LinearSpec(f"self_attn.{part}_proj", size, size, has_bias) for part in "qkv"),
            output=LinearSpec("self_attn.out_proj", size, size, has_bias),
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=size // num_heads,
            scale=(size // num_heads) ** -0.5,
            rope=None,
        ),
        feed_forward=FeedForwardSpec(
            inputs=(LinearSpec("fc1", size, inner, has_bias),),
            output=LinearSpec("fc2", inner, size, has_bias),
            activation=activation(raw, "activation_function", "relu"),
            is_gated=False,
        ),
        mixer_norm=_norm("self_attn_layer_norm", size),
        feed_forward_norm=_norm("final_layer_norm", size),
        norms_follow_sum=not is_before,
    )


def _norm(path: str, size: int) -> NormSpec:
    return NormSpec(path, size, EPS, is_layer_norm=True)


FAMILY: Final = Family(names=("OPT",), describe=_describe, hub={"OPT": ("facebook/opt-125m", "facebook/opt-350m")})
