"""Qwen2, 2.5 and Qwen3: the former with biases of queries, keys and values, the latter with norms over their heads."""

from typing import Final

from ..description.config_fields import FULL, SLIDING, Raw, flag, layer_types, number, positive, whole_number, window
from ..description.spec import AttentionSpec, ModelSpec, NormSpec
from .family import Family, gated_mlp, pre_norm_layer, split_heads, text_model

QWEN3_HEAD: Final = 128


def _describe(raw: Raw, name: str) -> ModelSpec:
    hidden_size, eps = positive(raw, "hidden_size"), number(raw, "rms_norm_eps", 1e-6)
    norm = NormSpec("model.norm", hidden_size, eps)
    layers = [
        pre_norm_layer(_mixer(raw, name, hidden_size, eps, seen), gated_mlp(raw, hidden_size), norm)
        for seen in _windows(raw)
    ]
    return text_model(raw, layers, norm)


def _mixer(raw: Raw, name: str, hidden_size: int, eps: float, seen: int | None) -> AttentionSpec:
    if name == "Qwen2":
        return split_heads(raw, hidden_size, window=seen, input_bias=True)
    head_dim, has_bias = positive(raw, "head_dim", QWEN3_HEAD), flag(raw, "attention_bias")
    return split_heads(
        raw,
        hidden_size,
        head_dim=head_dim,
        window=seen,
        input_bias=has_bias,
        output_bias=has_bias,
        head_norm=NormSpec("", head_dim, eps),
    )


def _windows(raw: Raw) -> list[int | None]:
    num_layers, slides = positive(raw, "num_hidden_layers"), flag(raw, "use_sliding_window")
    first = whole_number(raw, "max_window_layers", 28)
    windows = {FULL: None, SLIDING: window(raw, 4096) if slides else None}
    types = layer_types(raw, (FULL, SLIDING), [FULL] * first + [SLIDING] * max(0, num_layers - first))
    return [windows[kind] for kind in types]


FAMILY: Final = Family(
    names=("Qwen2", "Qwen3"),
    describe=_describe,
    hub={"Qwen2": ("Qwen/Qwen2.5-0.5B-Instruct",), "Qwen3": ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-Embedding-0.6B")},
)
