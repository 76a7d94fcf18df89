"""A decoder from token ids to logits in one compiled call: the kernels that Decoder composes, in the same order and
with the same bits, without Python between them. On a small model and few tokens, Python is most of a step: the weights
that pass through the caches leave nothing of it there.

Shapes: T tokens, R sampled rows, C hidden size, H query heads, G KV heads, D head size, I intermediate size, L layers,
V tokens of the vocabulary.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numba import carray, njit

from loraplex.lora.kernels.cpu import add_lora
from loraplex.lora.kernels.norms import replace_norms
from loraplex.lora.kernels.vectors import apply_vectors
from loraplex.quant.kernels.any_linear import WIDTH, any_linear
from loraplex.quant.kernels.instructions.address import pointer

from ...attention.kernels.arguments import Paged
from ...attention.kernels.attend import attend
from ...attention.kernels.paged import Cache, Scores, Step, merge
from ...attention.kernels.rotate import Heads
from ...attention.kernels.write import SERIAL_TOKENS, rotate_and_write, rotate_and_write_parallel
from ...kernels.norm import SERIAL_ELEMENTS as SERIAL_NORM
from ...kernels.norm import add_rows, add_rows_parallel
from ...kernels.silu import SERIAL_ELEMENTS as SERIAL_SILU
from ...kernels.silu import silu_rows, silu_rows_parallel
from ...kernels.vector import LANES, Array, load, store
from .gated import LEAST_TOKENS, add_lora_silu, has_vectors

(INPUT_NORM, MLP_NORM, QUERY_NORM, KEY_NORM) = range(4)
NORMS: Final = 4
QKV, OUTPUT, GATE_UP, DOWN = (NORMS + group * WIDTH for group in range(4))
LAST_NORM: Final = 2
"""Among the norms as LoRA counts them, where the first two are those of a layer as above."""


class Sizes(NamedTuple):
    hidden: Any
    heads: Any
    kv_heads: Any
    head_dim: Any
    intermediate: Any
    norm_size: Any
    """D where query and key heads are normed (Qwen3), else 0"""


class Model(NamedTuple):
    """What stays the same from step to step."""

    table: Any
    """[L, 36] int64, where each layer's weights are in memory: four norms, four linears as any_linear takes them"""
    embedding: Any
    """[V, C], bits of a short float or float32"""
    norm: Any
    """[C] float32, the last one"""
    head: Any
    """[8] int64, where the head is"""
    cos: Any
    """[positions, D / 2] float32; `sin` alike"""
    sin: Any
    eps: Any
    """float32"""
    kinds: Any
    """[7] int64, the linears q, k, v, o, gate, up, down as LoRA counts them"""
    firsts: Any
    """[4, 4] int64, for each group of linears: where each one's columns begin, and the end"""
    norm_kinds: Any
    """[5] int64, the norms as LoRA counts them: before attention, before the MLP, the last, of queries, of keys"""


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
    gate_up: Any
    """[T, 2 I]"""
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


@njit(inline="always")
def _floats(model: Model, layer: int, column: int, size: int) -> Array:
    return carray(pointer(model.table[layer, column], model.cos), (size,))


@njit(inline="always")
def _multiply(model: Model, where: Array, x: Array, y: Array, scratch: Array, workers: int) -> None:
    addresses = x.ctypes.data, scratch.ctypes.data, y.ctypes.data
    any_linear(where, *addresses, len(x), y.shape[1], x.shape[1], workers)


@njit(inline="always")
def _linear(model: Model, layer: int, column: int, x: Array, y: Array, scratch: Array, workers: int) -> None:
    _multiply(model, model.table[layer, column : column + WIDTH], x, y, scratch, workers)


@njit(inline="always")
def _lora(
    model: Model, layer: int, lora: Lora, x: Array, y: Array, group: int, kind: int, count: int, workers: int
) -> None:
    if len(lora.slots):
        kinds, firsts = model.kinds[kind : kind + count], model.firsts[group, : count + 1]
        add_lora(
            y, x, layer, kinds, firsts, lora.arena, lora.offset, lora.rank,
            lora.scaling, lora.scales, lora.sorted_tokens, lora.starts, lora.slots, lora.rounds, workers,
        )  # fmt: skip
        apply_vectors(
            y, layer, kinds, firsts, lora.floats, lora.vectors, lora.scales, lora.sorted_tokens, lora.starts, lora.slots
        )


@njit(inline="always")
def _norm(
    model: Model, layer: int, column: int, lora: Lora, tokens: Array, x: Array, residual: Array, output: Array
) -> None:
    _add_norm(x, residual, _floats(model, layer, column, x.shape[1]), model, output)
    _own_norms(model, layer, column, lora, tokens, residual, output)


@njit(inline="always")
def _own_norms(model: Model, layer: int, norm: int, lora: Lora, tokens: Array, residual: Array, output: Array) -> None:
    """Of the tokens whose adapters bring the weight of this norm."""
    if len(lora.slots):
        kind = model.norm_kinds[norm]
        replace_norms(output, residual, tokens, lora.token_slot, layer, kind, lora.floats, lora.vectors, model.eps)


@njit(inline="always")
def _add_norm(x: Array, residual: Array, weight: Array, model: Model, output: Array) -> None:
    if x.size < SERIAL_NORM:
        add_rows(x, residual, weight, model.eps, output)
    else:
        add_rows_parallel(x, residual, weight, model.eps, output)


@njit(inline="always")
def _rotate(model: Model, layer: int, sizes: Sizes, paged: Paged, cache: Cache, qkv: Array, query: Array) -> None:
    clipped = paged.clipped[layer]
    norms = _floats(model, layer, QUERY_NORM, sizes.norm_size), _floats(model, layer, KEY_NORM, sizes.norm_size)
    heads = Heads(model.cos, model.sin, norms[0], norms[1], model.eps, model.norm[:0], False, False)
    if len(qkv) < SERIAL_TOKENS:
        rotate_and_write(qkv, paged.positions, paged.slots, heads, cache, clipped, query)
    else:
        rotate_and_write_parallel(qkv, paged.positions, paged.slots, heads, cache, clipped, query, paged.workers)


@njit(inline="always")
def _rotate_again(
    model: Model, layer: int, sizes: Sizes, paged: Paged, lora: Lora, cache: Cache, qkv: Array, query: Array
) -> None:
    """For the tokens whose adapters norm queries or keys with weights of their own."""
    if sizes.norm_size and len(lora.slots):
        clipped = paged.clipped[layer]
        for token in range(len(qkv)):
            slot = lora.token_slot[token, 0]
            pages = lora.vectors[slot, model.norm_kinds[3]], lora.vectors[slot, model.norm_kinds[4]]
            if slot >= 0 and max(pages) >= 0:
                norms = (
                    _head_norm(model, layer, QUERY_NORM, sizes, lora, pages[0]),
                    _head_norm(model, layer, KEY_NORM, sizes, lora, pages[1]),
                )
                heads = Heads(model.cos, model.sin, norms[0], norms[1], model.eps, model.norm[:0], False, False)
                one = slice(token, token + 1)
                rotate_and_write(
                    qkv[one], paged.positions[one], paged.slots[one], heads, cache, clipped[one], query[one]
                )


@njit(inline="always")
def _head_norm(model: Model, layer: int, column: int, sizes: Sizes, lora: Lora, page: int) -> Array:
    """That of the base where there is no page."""
    if page < 0:
        return _floats(model, layer, column, sizes.norm_size)
    start = page + layer * 2 * sizes.norm_size
    return lora.floats[start : start + sizes.norm_size]


@njit(inline="always")
def _attend(layer: int, model: Model, paged: Paged, cache: Cache, query: Array, output: Array) -> None:
    step = Step(query, paged.block_tables, output, paged.partial_sums, paged.partial_states)
    scores = Scores(paged.score_scales[layer], paged.soft_caps[layer], paged.windows[layer], model.norm[:0])
    counter, workers = paged.counter, paged.workers
    if len(paged.decode_items):
        kernel, items, most = paged.decode_kernel, paged.decode_items, paged.decode_most
        attend(kernel, step, cache, items, counter, scores, most, workers)
    if len(paged.prefill_items):
        kernel, items, most = paged.prefill_kernel, paged.prefill_items, paged.prefill_most
        attend(kernel, step, cache, items, counter, scores, most, workers)
    if len(paged.merges):
        merge(step, paged.merges)


@njit(inline="always")
def _silu(gate_up: Array, output: Array) -> None:
    if output.size < SERIAL_SILU:
        silu_rows(gate_up, output)
    else:
        silu_rows_parallel(gate_up, output)


@njit(inline="always")
def _gated(model: Model, layer: int, lora: Lora, rooms: Workspace, workers: int) -> None:
    """rooms.active from the base's part of rooms.gate_up."""
    kinds, firsts = model.kinds[4:6], model.firsts[2, :3]
    if len(rooms.active) >= LEAST_TOKENS and len(lora.slots) and not has_vectors(lora.vectors, lora.slots, kinds):
        add_lora_silu(
            rooms.gate_up, rooms.normed, rooms.active, layer, kinds, firsts, lora.arena, lora.offset, lora.rank,
            lora.scaling, lora.scales, lora.sorted_tokens, lora.starts, lora.slots, workers,
        )  # fmt: skip
    else:
        _lora(model, layer, lora, rooms.normed, rooms.gate_up, 2, 4, 2, workers)
        _silu(rooms.gate_up, rooms.active)


@njit(inline="always")
def _embed(token_ids: Array, model: Model, x: Array) -> None:
    size = x.shape[1]
    for token in range(len(token_ids)):
        for at in range(0, size, LANES):
            store(x, token * size + at, load(model.embedding, token_ids[token] * size + at))


@njit(inline="always")
def _apply_layer(
    layer: int, model: Model, sizes: Sizes, paged: Paged, lora: Lora, tokens: Array, rooms: Workspace
) -> None:
    """As DecoderLayer.apply: rooms.x is what was computed last and not yet added to the residual stream."""
    x, residual, normed, scratch, workers = rooms.x, rooms.residual, rooms.normed, rooms.scratch, paged.workers
    attended = rooms.attended.reshape(len(x), sizes.heads * sizes.head_dim)
    place = paged.places[layer]
    cache = Cache(paged.key[place], paged.value[place], paged.scales[place], paged.static[place])
    _norm(model, layer, INPUT_NORM, lora, tokens, x, residual, normed)
    _linear(model, layer, QKV, normed, rooms.qkv, scratch, workers)
    _lora(model, layer, lora, normed, rooms.qkv, 0, 0, 3, workers)
    _rotate(model, layer, sizes, paged, cache, rooms.qkv, rooms.query)
    _rotate_again(model, layer, sizes, paged, lora, cache, rooms.qkv, rooms.query)
    _attend(layer, model, paged, cache, rooms.query, rooms.attended)
    _linear(model, layer, OUTPUT, attended, x, scratch, workers)
    _lora(model, layer, lora, attended, x, 1, 3, 1, workers)
    _norm(model, layer, MLP_NORM, lora, tokens, x, residual, normed)
    _linear(model, layer, GATE_UP, normed, rooms.gate_up, scratch, workers)
    _gated(model, layer, lora, rooms, workers)
    _linear(model, layer, DOWN, rooms.active, x, scratch, workers)
    _lora(model, layer, lora, rooms.active, x, 3, 6, 1, workers)


@njit(cache=True, nogil=True)
def forward(
    token_ids: Array, own_tokens: Array, own_embeddings: Array, sample_rows: Array, logits: Array, rooms: Workspace,
    model: Model, sizes: Sizes, paged: Paged, lora: Lora,
) -> None:  # fmt: skip
    """token_ids [T] -> logits [R, V] of the tokens `sample_rows` [R]; keys and values of all tokens go to the cache.

    The tokens `own_tokens` [n] have the embeddings [n, C] instead of the base's.
    """
    _embed(token_ids, model, rooms.x)
    for row in range(len(own_tokens)):
        rooms.x[own_tokens[row]] = own_embeddings[row]
    rooms.residual[:] = 0
    tokens = np.arange(len(token_ids))
    for layer in range(len(model.table)):
        _apply_layer(layer, model, sizes, paged, lora, tokens, rooms)
    if len(sample_rows):
        for row in range(len(sample_rows)):
            rooms.sampled_x[row] = rooms.x[sample_rows[row]]
            rooms.sampled_residual[row] = rooms.residual[sample_rows[row]]
        _add_norm(rooms.sampled_x, rooms.sampled_residual, model.norm, model, rooms.sampled_normed)
        _own_norms(model, 0, LAST_NORM, lora, sample_rows, rooms.sampled_residual, rooms.sampled_normed)
        _multiply(model, model.head, rooms.sampled_normed, logits, rooms.scratch, paged.workers)
