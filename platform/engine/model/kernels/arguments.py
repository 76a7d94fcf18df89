"""What one compiled step takes. A layer is a row of a table of numbers: addresses of its weights, and how it computes.

Shapes: T tokens, R sampled rows, C hidden size, H query heads, G KV heads, D head size, I intermediate size, L layers,
V tokens of the vocabulary.
"""

from typing import Any, Final, NamedTuple

from loraplex.quant.kernels.any_linear import WIDTH

NORMS: Final = 4
"""Of a layer: before a block or after its sum, and over what a block gives."""
(MIXER_NORM, FEED_FORWARD_NORM, MIXER_OUTPUT_NORM, FEED_FORWARD_OUTPUT_NORM) = range(NORMS)
"""Columns: the norms' weights; 0: there is none. NORMS farther on, their biases; 0: an RMS norm."""
(
    QUERY_NORM, KEY_NORM, COS, SIN, QUERY_SCALE, QUERY_NORM_SIZE, KEY_NORM_SIZE, POSITIONS, ANGLES, SCALED_POSITIONS,
    IS_INTERLEAVED, HAS_VALUE_NORM, HAS_GATE,
) = range(2 * NORMS, 2 * NORMS + 13)  # fmt: skip
"""Columns of a layer that attends: five addresses as Heads has them, and how many numbers are there: of norms, rows and
columns of `cos`, of `query_scale`; then what is 0 or 1. HAS_GATE: as `gated_heads` of Attention."""
CONV, DECAY, DT_BIAS, DELTA_NORM = range(QUERY_NORM, QUERY_NORM + 4)
"""Columns of a recurrent layer: addresses as DeltaWeights has them."""
ACTIVATION, IS_GATED, FOLLOWS_SUM, IS_RECURRENT, PLACE, MODULES = range(HAS_GATE + 1, HAS_GATE + 7)
"""ACTIVATION is one of activations.py. FOLLOWS_SUM: as DecoderLayer.norms_follow_sum. PLACE: among the layers that
attend, or among those that do not. MODULES: the row of Model.groups and so on."""
GROUPS: Final = 4
INPUTS, OUTPUT, INNER, DOWN = range(GROUPS)
"""The groups of linears, in the order in which they are applied."""
WIDTHS: Final = MODULES + 1
"""The first column of two for each group: inputs and outputs."""
LINEARS: Final = WIDTHS + 2 * GROUPS
"""The first column of WIDTH for each group, as any_linear takes them."""
COLUMNS: Final = LINEARS + GROUPS * WIDTH

MIXER_EPS, RESIDUAL_SCALE = range(NORMS, NORMS + 2)
"""Columns of `numbers`, behind the eps of the norms. MIXER_EPS: of the norms of heads."""

LAST_NORM, OWN_QUERY_NORM, OWN_KEY_NORM = range(NORMS, NORMS + 3)
"""Among the norms as LoRA counts them, behind those of a layer."""
ALL_NORMS: Final = NORMS + 3


class Sizes(NamedTuple):
    hidden: Any
    heads: Any
    kv_heads: Any
    head_dim: Any


class Model(NamedTuple):
    """What stays the same from step to step. K: how many sets of modules layers have."""

    table: Any
    """[L, COLUMNS] int64"""
    numbers: Any
    """[L, NORMS + 2] float32"""
    embedding: Any
    """[V, C], bits of a short float or float32"""
    embedding_scale: Any
    """float32"""
    positions: Any
    """[positions, C] float32, added by position; [0, C]: nothing is"""
    norm: Any
    """[C] float32, the last one; [0]: there is none"""
    norm_bias: Any
    """[C] float32, of a LayerNorm; else [0]"""
    eps: Any
    """float32, of the last norm"""
    head: Any
    """[8] int64, where the head is"""
    activate: Any
    """int64, activation_address; 0 where all layers compute silu(gate) * up"""
    groups: Any
    """[K, 5] int64: where each group's linears begin in a row of `kinds`, and the end"""
    kinds: Any
    """[K, most linears] int64, the linears as LoRA counts them, group after group"""
    firsts: Any
    """[K, 4, most linears of a group + 1] int64, for each group: where each one's columns begin, and the end"""
    norm_kinds: Any
    """[K, ALL_NORMS] int64, the norms as LoRA counts them; -1: there is none"""
    ordinals: Any
    """[L, 4 + ALL_NORMS] int64, of each group and norm: which of the modules of its kind the layer has"""


class Workspace(NamedTuple):
    """Where a step works, all float32; what they hold before does not matter."""

    x: Any
    """[T, C]; `residual` and `normed` alike"""
    residual: Any
    normed: Any
    projected: Any
    """[T * the most that a mixer's inputs give], one after the other as long as the layer needs; the next three alike
    """
    attended: Any
    inner: Any
    active: Any
    qkv: Any
    """[T, (H + 2 G) D], without the gates that stood among them; [0, ...] where no layer has gates"""
    gates: Any
    """[T, H D], alike"""
    query: Any
    """[T, H, D]"""
    sampled_x: Any
    """[R, C]; the others of `sampled_` alike"""
    sampled_residual: Any
    sampled_normed: Any
    scratch: Any
    """As many as the linears need"""


class Lora(NamedTuple):
    """The arguments of the LoRA kernel; no `slots`: no token uses an adapter."""

    arena: Any
    offset: Any
    rank: Any
    scaling: Any
    scales: Any
    sorted_tokens: Any
    starts: Any
    slots: Any
    rounds: Any
    floats: Any
    """The arena as float32"""
    vectors: Any
    token_slot: Any
