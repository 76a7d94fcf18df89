"""Gemma 2, Gemma 3 and EmbeddingGemma: norms before and after each block, whose weights count from 1, and windows in
most layers."""

from dataclasses import replace
from typing import Any, Final

from ..description.config_fields import (
    FULL,
    SLIDING,
    Raw,
    above_zero,
    flag,
    layer_types,
    number,
    positive,
    rope,
    rounded,
    stored_dtype,
)
from ..description.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormSpec, RopeConfig
from .family import Family, gated_mlp, split_heads, text_model

DEFAULTS: Final[dict[str, Any]] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
DEFAULTS_2: Final = DEFAULTS | {
    "vocab_size": 256_000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
DEFAULTS_3: Final = DEFAULTS | {"vocab_size": 262_208, "max_position_embeddings": 131_072}
GLOBAL_THETA: Final = 1_000_000.0
LOCAL_THETA: Final = 10_000.0
"""Of Gemma 3, where config.json says nothing."""
BESIDE_TEXT: Final = {
    "vision_tower": "the vision encoder",
    "multi_modal_projector": "the vision encoder",
    "embed_vision": "the vision encoder",
    "audio_tower": "the audio encoder",
    "embed_audio": "the audio encoder",
}


def _describe(raw: Raw, name: str) -> ModelSpec:
    looks_ahead = _looks_ahead(raw)
    if looks_ahead and name == "Gemma2":
        raise ValueError("use_bidirectional_attention is not supported for Gemma 2")
    hidden_size = positive(raw, "hidden_size")
    norm = NormSpec("model.norm", hidden_size, number(raw, "rms_norm_eps", 1e-6), adds_one=True)
    attention = _attention_2(raw) if name == "Gemma2" else _attention_3(raw)
    layers = [sandwich_layer(mixer, gated_mlp(raw, hidden_size, act="hidden_activation"), norm) for mixer in attention]
    spec = scaled_model(text_model(raw, layers, norm, tied=True), raw)
    return replace(spec, head=None) if looks_ahead else spec


def _looks_ahead(raw: Raw) -> bool:
    """EmbeddingGemma: tokens see those behind them too."""
    return flag(raw, "use_bidirectional_attention")


def _attention_2(raw: Raw) -> list[AttentionSpec]:
    mixer = _mixer(raw, rope(raw, positive(raw, "head_dim")))
    mixer = replace(mixer, soft_cap=optional(raw, "attn_logit_softcapping"))
    return [replace(mixer, window=_window(raw, kind)) for kind in _kinds(raw, 2)]


def _attention_3(raw: Raw) -> list[AttentionSpec]:
    if raw.get("attn_logit_softcapping") is not None:
        raise ValueError("attn_logit_softcapping is not supported for Gemma 3, whose attention has no cap")
    pattern = positive(raw, "sliding_window_pattern", 6)
    ropes, head_dim = _ropes(raw), positive(raw, "head_dim")
    head_norm = NormSpec("", head_dim, number(raw, "rms_norm_eps", 1e-6), adds_one=True)
    return [
        replace(_mixer(raw, rope(raw, head_dim, said=ropes[kind]), head_norm), window=_window(raw, kind))
        for kind in _kinds(raw, pattern)
    ]


def _mixer(raw: Raw, rotary: RopeConfig, head_norm: NormSpec | None = None) -> AttentionSpec:
    has_bias, scalar = flag(raw, "attention_bias"), above_zero(raw, "query_pre_attn_scalar")
    mixer = split_heads(
        raw,
        positive(raw, "hidden_size"),
        input_bias=has_bias,
        output_bias=has_bias,
        rotary=rotary,
        head_norm=head_norm,
    )
    return replace(mixer, scale=scalar**-0.5, is_causal=not _looks_ahead(raw))


def _kinds(raw: Raw, pattern: int) -> list[str]:
    """What each layer is; where config.json does not say, each `pattern`th sees all tokens."""
    num_layers = positive(raw, "num_hidden_layers")
    default = [SLIDING if place % pattern else FULL for place in range(1, num_layers + 1)]
    return layer_types(raw, (FULL, SLIDING), default)


def _window(raw: Raw, kind: str) -> int | None:
    """To both sides half of it."""
    if kind != SLIDING:
        return None
    size = positive(raw, "sliding_window")
    return size // 2 + 1 if _looks_ahead(raw) else size


def _ropes(raw: Raw) -> dict[str, Raw]:
    """Of each kind of layer. transformers 4 has names of its own for them."""
    said = raw.get("rope_parameters") or {}
    if not set(said) <= {FULL, SLIDING}:
        raise ValueError(f"rope_parameters must have an entry for {FULL} and one for {SLIDING}, got {', '.join(said)}")
    full = {"rope_theta": raw.get("rope_theta", GLOBAL_THETA)} | (said.get(FULL) or {})
    sliding = {"rope_theta": raw.get("rope_local_base_freq", LOCAL_THETA)} | (said.get(SLIDING) or {})
    return {FULL: full | (raw.get("rope_scaling") or {}), SLIDING: sliding}


def optional(raw: Raw, name: str) -> float | None:
    return None if raw.get(name) is None else above_zero(raw, name)


def sandwich_layer(mixer: AttentionSpec, feed_forward: FeedForwardSpec, norm: NormSpec) -> LayerSpec:
    """Norms before and after each block; `norm` says what they are like, their paths apart."""
    return LayerSpec(
        mixer=mixer,
        feed_forward=feed_forward,
        mixer_norm=replace(norm, path="input_layernorm"),
        mixer_output_norm=replace(norm, path="post_attention_layernorm"),
        feed_forward_norm=replace(norm, path="pre_feedforward_layernorm"),
        feed_forward_output_norm=replace(norm, path="post_feedforward_layernorm"),
    )


def scaled_model(spec: ModelSpec, raw: Raw) -> ModelSpec:
    """With embeddings scaled by the root of their size, as their dtype has it, and logits capped; by itself or as part
    of a larger model."""
    assert spec.head is not None
    return replace(
        spec,
        embedding=replace(spec.embedding, scale=rounded(spec.hidden_size**0.5, stored_dtype(raw))),
        head=replace(spec.head, soft_cap=optional(raw, "final_logit_softcapping")),
        renamed={
            "model.language_model.": "model.",
            "language_model.model.": "model.",
            "language_model.lm_head.": "lm_head.",
        },
        left_out={f"{start}{part}.": what for start in ("", "model.") for part, what in BESIDE_TEXT.items()},
    )


FAMILY: Final = Family(
    names=("Gemma2", "Gemma3"),
    describe=_describe,
    text_of={"Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3"}},
    other_names={
        "Gemma3TextModel": ("Gemma3", "embed"),
        "Gemma3TextForSequenceClassification": ("Gemma3", "classify"),
    },
    hub={
        "Gemma2": ("google/gemma-2-2b-it", "google/gemma-2-9b-it"),
        "Gemma3": ("google/gemma-3-270m-it", "google/gemma-3-1b-it", "google/gemma-3-4b-it"),
    },
    defaults={"Gemma2": DEFAULTS_2, "Gemma3": DEFAULTS_3},
)
