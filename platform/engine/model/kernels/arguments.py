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
    QUERY_NORM, KEY_NORM, COS, SIN, QUERY_SCALE, POSITIONS, ANGLES, SCALED_POSITIONS, IS_INTERLEAVED, HAS_VALUE_NORM,
    ACTIVATION, IS_GATED, FOLLOWS_SUM,
) = range(2 * NORMS, 2 * NORMS + 13)  # fmt: skip
"""Columns: five addresses as Heads has them; rows and columns of `cos`, elements of `query_scale`; what is 0 or 1, but
ACTIVATION is one of activations.py. FOLLOWS_SUM: as DecoderLayer.norms_follow_sum."""
GROUPS: Final = 4
QKV, OUTPUT, INNER, DOWN = range(GROUPS)
"""The groups of linears, in the order in which they are applied."""
LINEARS: Final = FOLLOWS_SUM + 1
"""The first column of the groups, WIDTH each as any_linear takes them."""
COLUMNS: Final = LINEARS + GROUPS * WIDTH

HEADS_EPS, RESIDUAL_SCALE = range(NORMS, NORMS + 2)
"""Columns of `numbers`, behind the eps of the norms."""

LAST_NORM, OWN_QUERY_NORM, OWN_KEY_NORM = range(NORMS, NORMS + 3)
"""Among the norms as LoRA counts them, behind those of a layer."""


class Sizes(NamedTuple):
    hidden: Any
    heads: Any
    kv_heads: Any
    head_dim: Any
    intermediate: Any
    inner: Any
    """What the linears before the activation give: I, or 2 I with a gate"""
    query_norm: Any
    """D where each query head is normed, H D where all are together, else 0"""
    key_norm: Any
    """D, G D or 0"""


class Model(NamedTuple):
    """What stays the same from step to step."""

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
    """[5] int64: where each group's linears begin in `kinds`, and the end"""
    kinds: Any
    """int64, the linears as LoRA counts them, group after group"""
    firsts: Any
    """[4, most linears of a group + 1] int64, for each group: where each one's columns begin, and the end"""
    norm_kinds: Any
    """[NORMS + 3] int64, the norms as LoRA counts them; -1: there is none"""


class Workspace(NamedTuple):
    """Where a step works, all float32; what they hold before does not matter."""

    x: Any
    """[T, C]; `residual` and `normed` alike"""
    residual: Any
    normed: Any
    qkv: Any
    """[T, (H + 2 G) D]"""
    query: Any
    """[T, H, D]; `attended` alike"""
    attended: Any
    inner: Any
    """[T, I], or [T, 2 I] of gates and what they multiply"""
    active: Any
    """[T, I]"""
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
