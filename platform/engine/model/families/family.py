"""Family: what a file of this room offers, and what the families share in telling their layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ..description.config_fields import Raw, activation, flag, head_size, heads, positive, rope
from ..description.feed_forward import ExpertsSpec
from ..description.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    HeadSpec,
    LayerSpec,
    LinearSpec,
    ModelSpec,
    NormSpec,
    RopeConfig,
)

Task = Literal["generate", "classify", "classify_tokens", "embed"]
"""What a checkpoint was made for. Embeddings can be made of any."""
DECODERS: Final[Mapping[str, Task]] = {
    "ForCausalLM": "generate",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "classify_tokens",
    "Model": "embed",
}
"""What follows the family in an architecture's name."""
ENCODERS: Final[Mapping[str, Task]] = {
    "Model": "embed",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "classify_tokens",
    "ForMaskedLM": "embed",
    "ForPreTraining": "embed",
}
"""The same of families that generate no text."""


@dataclass(frozen=True, slots=True)
class Family:
    names: tuple[str, ...]
    """Architectures without what follows the family's name: Llama for LlamaForCausalLM."""
    describe: Callable[[Raw, str], ModelSpec]
    """(config.json, one of `names`) -> what is computed. ValueError says what is missing or unsupported."""
    text_of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Architectures, in full, of which the text model is a part, described by `text_config` -> by the `model_type`
    there, which of `names` it is; the first of them where it says none. `describe` then gets `text_config` with what
    only the whole says."""
    other_names: Mapping[str, tuple[str, Task]] = field(default_factory=dict)
    """Architectures, in full, where they are called otherwise -> which of `names` they are, and made for what."""
    hub: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Which of `names` -> examples on the hub, for people."""
    defaults: Mapping[str, Raw] = field(default_factory=dict)
    """Of the fields that config.json may leave out, by one of `names`, for families whose checkpoints do."""
    tasks: Mapping[str, Task] = field(default_factory=lambda: DECODERS)
    """What follows one of `names` in an architecture -> what a checkpoint of it was made for."""
    length_field: str = "max_position_embeddings"
    """Of config.json: the tokens that the model was made for."""


def split_heads(
    raw: Raw,
    hidden_size: int,
    *,
    head_dim: int | None = None,
    input_bias: bool = False,
    output_bias: bool = False,
    window: int | None = None,
    rotary: RopeConfig | None = None,
    head_norm: NormSpec | None = None,
) -> AttentionSpec:
    """Attention with q_proj, k_proj, v_proj and o_proj. `rotary`: None: as config.json says of all layers; `head_norm`:
    what the norms of query and key heads are like, their paths apart."""
    num_heads, num_kv_heads = heads(raw)
    size = head_size(raw, head_dim)
    query, key = num_heads * size, num_kv_heads * size
    return AttentionSpec(
        inputs=tuple(
            LinearSpec(f"self_attn.{part}_proj", hidden_size, outputs, input_bias)
            for part, outputs in (("q", query), ("k", key), ("v", key))
        ),
        output=LinearSpec("self_attn.o_proj", query, hidden_size, output_bias),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=size,
        scale=size**-0.5,
        rope=rope(raw, size) if rotary is None else rotary,
        window=window,
        query_norm=_named(head_norm, "self_attn.q_norm"),
        key_norm=_named(head_norm, "self_attn.k_norm"),
    )


def as_one(path: str, linears: tuple[LinearSpec, ...]) -> tuple[LinearSpec]:
    """Linears that a checkpoint stores as one, in their order. Adapters target it as it is stored."""
    first = linears[0]
    return (LinearSpec(path, first.inputs, sum(linear.outputs for linear in linears), first.has_bias),)


def _named(norm: NormSpec | None, path: str) -> NormSpec | None:
    return norm and NormSpec(path, norm.size, norm.eps, norm.is_layer_norm, norm.adds_one)


def gated_mlp(raw: Raw, hidden_size: int, has_bias: bool = False, act: str = "hidden_act") -> FeedForwardSpec:
    """gate_proj, up_proj and down_proj."""
    size = positive(raw, "intermediate_size")
    gate, up = (LinearSpec(f"mlp.{part}_proj", hidden_size, size, has_bias) for part in ("gate", "up"))
    return FeedForwardSpec(
        inputs=(gate, up),
        output=LinearSpec("mlp.down_proj", size, hidden_size, has_bias),
        activation=activation(raw, act, "silu"),
        is_gated=True,
    )


def pre_norm_layer(mixer: AttentionSpec, feed_forward: FeedForwardSpec | ExpertsSpec, norm: NormSpec) -> LayerSpec:
    """As Llama has it; `norm` says what the norms are like, their paths apart."""
    before, between = _named(norm, "input_layernorm"), _named(norm, "post_attention_layernorm")
    return LayerSpec(mixer=mixer, feed_forward=feed_forward, mixer_norm=before, feed_forward_norm=between)


def text_model(
    raw: Raw,
    layers: list[LayerSpec],
    norm: NormSpec,
    *,
    tied: bool = False,
    renamed: Mapping[str, str] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> ModelSpec:
    """As Llama has it. `tied`: where config.json does not say; the others as of ModelSpec."""
    hidden_size = positive(raw, "hidden_size")
    return ModelSpec(
        hidden_size=hidden_size,
        embedding=EmbeddingSpec(path="model.embed_tokens", vocab_size=positive(raw, "vocab_size"), size=hidden_size),
        layers=tuple(layers),
        norm=norm,
        head=HeadSpec(is_tied=flag(raw, "tie_word_embeddings", tied)),
        renamed=renamed or {},
        left_out=left_out or {},
    )
