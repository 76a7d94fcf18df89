"""ModelSpec: what a family says of a checkpoint, layer by layer. No torch.

Names are those of the text model with its head (`model.layers.0.self_attn.q_proj`), whatever the checkpoint's files
call it. Paths of modules in a layer are relative to the layer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from .feed_forward import Activation as Activation
from .feed_forward import ExpertsSpec, Group
from .feed_forward import FeedForwardSpec as FeedForwardSpec
from .feed_forward import LinearSpec as LinearSpec
from .feed_forward import NormSpec as NormSpec


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions become angles. `parameters` holds the numbers of the scaling kind, `theta` apart."""

    kind: str
    """default, linear, dynamic, llama3, yarn, longrope or proportional."""
    theta: float
    parameters: Mapping[str, float]
    dims: int
    """Of each head, from its start; the rest passes through. Even."""
    is_interleaved: bool = False
    """Turns neighbours (0, 1), (2, 3), ... instead of the two halves."""
    factors: tuple[float, ...] = ()
    """Of longrope: what each frequency is divided by, dims / 2 numbers."""
    long_factors: tuple[float, ...] = ()
    """The same where sequences may be longer than `original_length`: one set for all of them, so that keys in the cache
    never have to be turned again."""

    @property
    def original_length(self) -> int | None:
        """Of longrope: the tokens up to which `factors` hold; None: no other kind has such a border."""
        return int(self.parameters["original_max_position_embeddings"]) if self.long_factors else None


@dataclass(frozen=True, slots=True)
class QueryScale:
    """The query at position p is multiplied by 1 + beta * log(1 + floor(p / length))."""

    beta: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    inputs: tuple[LinearSpec, ...]
    """Queries, keys and values, fused or apart, in this order; queries alone where `keys_of` is given."""
    output: LinearSpec
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    """Of scores."""
    rope: RopeConfig | None
    """None: the layer knows no positions."""
    is_causal: bool = True
    """A token sees those before it and itself. False: those behind it too, of a prompt that is computed at once."""
    query_scale: QueryScale | None = None
    """After rope; None: queries stay as they are."""
    window: int | None = None
    """How many of the latest tokens are seen, to both sides where the layer is not causal; None: all."""
    query_norm: NormSpec | None = None
    """Over each head, or over all of them where its size says so. `key_norm` alike, both or neither."""
    key_norm: NormSpec | None = None
    value_norm_eps: float | None = None
    """RMS norm without a weight over each value head; None: none."""
    soft_cap: float | None = None
    """Scores become cap * tanh(score / cap)."""
    sinks: str | None = None
    """Path of a logit for each head that takes part in the softmax and adds nothing."""
    has_output_gate: bool = False
    """Each query head is followed by as many numbers whose sigmoid multiplies the attended values."""
    keys_of: int | None = None
    """The layer whose keys and values it reads instead of its own."""
    values_are_keys: bool = False
    """`inputs` are queries and keys; values are what the keys are before their norm and rope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSpec:
    """Gated delta net: a causal convolution and the delta rule, with a state instead of keys and values."""

    inputs: tuple[LinearSpec, ...]
    """in_proj_qkv, in_proj_z, in_proj_b, in_proj_a."""
    output: LinearSpec
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel_size: int
    """Tokens that the convolution sees."""
    norm: NormSpec
    """Gated, over each value head of the result."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names in the layer and shapes of what is neither a linear nor a norm that adapters may bring: convolution,
        A_log, dt_bias, and the weight of `norm`."""
        block = self.output.path.rpartition(".")[0]
        return {
            f"{block}.conv1d.weight": (self.inputs[0].outputs, 1, self.kernel_size),
            f"{block}.A_log": (self.num_value_heads,),
            f"{block}.dt_bias": (self.num_value_heads,),
            f"{self.norm.path}.weight": (self.norm.size,),
        }


MixerSpec = AttentionSpec | DeltaNetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputSpec:
    """stream += norm(output(activation(gate(stream)) * what the layer gets of each token)), after the feed-forward."""

    gate: LinearSpec
    output: LinearSpec
    activation: Activation
    norm: NormSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """stream += mixer(norm(stream)); stream += feed_forward(norm(stream)), each with what the fields say."""

    mixer: MixerSpec
    feed_forward: FeedForwardSpec | ExpertsSpec
    mixer_norm: NormSpec | None
    """Before the mixer."""
    feed_forward_norm: NormSpec | None
    mixer_output_norm: NormSpec | None = None
    """Over what the mixer gave, before it is added."""
    feed_forward_output_norm: NormSpec | None = None
    norms_follow_sum: bool = False
    """`mixer_norm` and `feed_forward_norm` are over the sum after the block, which they replace (OPT-350m)."""
    residual_scale: float = 1.0
    """Of what mixer and feed-forward give."""
    token_input: TokenInputSpec | None = None
    """Of a model that has `token_inputs`."""
    scale: str | None = None
    """Path of one number that the stream is multiplied by at the end of the layer."""

    def linear_groups(self) -> tuple[Group, ...]:
        """Those of the experts apart."""
        groups = self.mixer.inputs, (self.mixer.output,), *self.feed_forward.groups()
        own = self.token_input
        return groups if own is None else (*groups, (own.gate,), (own.output,))

    def linears(self) -> Iterator[LinearSpec]:
        """Those of the experts apart."""
        for group in self.linear_groups():
            yield from group

    def expert_groups(self) -> Iterator[Group]:
        if isinstance(self.feed_forward, ExpertsSpec):
            for expert in self.feed_forward.experts():
                yield from expert.groups()

    def expert_linears(self) -> Iterator[LinearSpec]:
        for group in self.expert_groups():
            yield from group

    def norms(self) -> Iterator[NormSpec]:
        """Those with a weight that adapters may bring."""
        own = (self.mixer.query_norm, self.mixer.key_norm) if isinstance(self.mixer, AttentionSpec) else ()
        around = (self.mixer_norm, self.mixer_output_norm, self.feed_forward_norm, self.feed_forward_output_norm)
        last = None if self.token_input is None else self.token_input.norm
        yield from (norm for norm in (*around, *self.feed_forward.norms(), last, *own) if norm is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    path: str
    vocab_size: int
    size: int
    """Of a token's row."""
    scale: float = 1.0
    positions: str | None = None
    """Path of a table of learned positions."""
    position_offset: int = 0
    """Rows of that table before the first position."""
    segments: str | None = None
    """Path of a table whose row 0 is added to all tokens, and row 1 to those of a pair's second text."""
    num_segments: int = 2
    norm: NormSpec | None = None
    """Over the sum of all these."""
    projection: LinearSpec | None = None
    """From a token's row to the hidden size, where these differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputsSpec:
    """What each layer gets of each token beside the stream: scale * (norm(projection_scale * projection(embedded)) +
    the token's row), a norm over each layer's part."""

    rows: EmbeddingSpec
    """Each row has the parts of all layers, one after the other."""
    projection: LinearSpec
    """From what the first layer reads."""
    projection_scale: float
    norm: NormSpec
    scale: float

    @property
    def size(self) -> int:
        """Of one layer's part."""
        return self.norm.size


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    path: str = "lm_head"
    is_tied: bool
    """Without a head of its own, the embedding's rows are the head."""
    has_bias: bool = False
    projection: LinearSpec | None = None
    """From the hidden size to a token's row, where these differ."""
    scale: float = 1.0
    """Of logits."""
    soft_cap: float | None = None
    """Logits become cap * tanh(logit / cap), after the scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierSpec:
    """What makes the scores of classes of a vector: linears, with an activation after all but the last."""

    linears: tuple[LinearSpec, ...]
    """The last one's outputs are 0: one for each class. Paths as in the whole model."""
    activation: Activation = "tanh"
    norm: NormSpec | None = None
    """After the activation."""
    pooling: Literal["last", "cls", "mean", "all"] = "last"
    """Which tokens make the vector. all: each makes one, and is classified by itself."""
    owned: str
    """Path of the module that adapters for classes bring as a whole."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of all. A size of 0 is one for each class."""
        found: dict[str, tuple[int, ...]] = {}
        for linear in self.linears:
            found[f"{linear.path}.weight"] = linear.outputs, linear.inputs
            if linear.has_bias:
                found[f"{linear.path}.bias"] = (linear.outputs,)
        if self.norm is not None:
            parts = ("weight", "bias") if self.norm.has_bias else ("weight",)
            found |= {f"{self.norm.path}.{part}": (self.norm.size,) for part in parts}
        return found

    def owns(self, tensor: str) -> bool:
        """Whether it is of the head itself, which only a model that classifies has."""
        return tensor.startswith(f"{self.owned}.")


SCORE: Final = ClassifierSpec(linears=(LinearSpec("score", 0, 0),), owned="score")
"""Of models that generate text."""


def token_classifier(path: str, inputs: int = 0) -> ClassifierSpec:
    """One linear with a bias, for each token."""
    return ClassifierSpec(linears=(LinearSpec(path, inputs, 0, has_bias=True),), pooling="all", owned=path)


TOKEN_SCORE: Final = token_classifier("score")
"""The same as SCORE, of those that classify tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    hidden_size: int
    embedding: EmbeddingSpec
    layers: tuple[LayerSpec, ...]
    norm: NormSpec | None
    """The last one; None: there is none."""
    head: HeadSpec | None
    """None: the model generates no text."""
    classifier: ClassifierSpec = SCORE
    token_classifier: ClassifierSpec = TOKEN_SCORE
    """In the place of `classifier` in a checkpoint that was made to classify tokens."""
    length: int | None = None
    """Most tokens, where that is not what config.json has for all families."""
    token_inputs: TokenInputsSpec | None = None
    layers_path: str = "model.layers"
    renamed: Mapping[str, str] = field(default_factory=dict)
    """How tensors' names begin in a checkpoint -> how they begin here; the longest that fits counts."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """How the names of tensors begin, here or in a checkpoint, that are not served -> what they are, for people."""
    renamed_ends: Mapping[str, str] = field(default_factory=dict)
    """How tensors' names end in old checkpoints -> how they end now."""
    derived: tuple[str, ...] = ()
    """How the names of buffers end that old checkpoints store and that follow from the description."""

    def recurrent_layers(self) -> list[DeltaNetSpec]:
        """The mixers that keep a state, in the order of their layers."""
        return [layer.mixer for layer in self.layers if isinstance(layer.mixer, DeltaNetSpec)]

    @property
    def keeps_keys(self) -> bool:
        """Whether later tokens need the keys and values of earlier steps. No: a prompt is computed in one step."""
        causal = [mixer.is_causal for _, mixer in self.attention_layers()]
        assert all(causal) or not (any(causal) or self.recurrent_layers()), "layers to both sides have no others beside"
        return all(causal)

    def attention_layers(self) -> list[tuple[int, AttentionSpec]]:
        """The layers that attend, with their numbers."""
        mixers = enumerate(layer.mixer for layer in self.layers)
        return [(number, mixer) for number, mixer in mixers if isinstance(mixer, AttentionSpec)]

    def read_by_others(self) -> frozenset[int]:
        """The layers whose keys and values later layers read."""
        return frozenset(mixer.keys_of for _, mixer in self.attention_layers() if mixer.keys_of is not None)
