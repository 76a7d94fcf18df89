"""A decoder from token ids to logits in one compiled call: the kernels that Decoder composes, in the same order and
with the same bits, without Python between them. On a small model and few tokens, Python is most of a step: the weights
that pass through the caches leave nothing of it there. Shapes as in arguments.py.
"""

import numpy as np
from numba import carray, njit

from loraplex.lora.kernels.cpu import add_lora
from loraplex.lora.kernels.norms import replace_norms
from loraplex.lora.kernels.vectors import apply_vectors
from loraplex.quant.kernels.any_linear import WIDTH, any_linear
from loraplex.quant.kernels.instructions.address import call, pointer

from ...attention.kernels.arguments import Paged
from ...attention.kernels.paged import Cache
from ...delta_net.kernels.mix import mix
from ...kernels.activations import SILU, gate
from ...kernels.norm import norm_rows
from ...kernels.silu import SERIAL_ELEMENTS as SERIAL_SILU
from ...kernels.silu import silu_rows, silu_rows_parallel
from ...kernels.vector import LANES, Array, add, load, multiply, splat, store
from .arguments import (
    ACTIVATION,
    CONV,
    DECAY,
    DELTA_NORM,
    DOWN,
    DT_BIAS,
    FEED_FORWARD_NORM,
    FOLLOWS_SUM,
    GROUPS,
    HAS_GATE,
    INNER,
    INPUTS,
    IS_GATED,
    IS_RECURRENT,
    LAST_NORM,
    LINEARS,
    MIXER_EPS,
    MIXER_NORM,
    MIXER_OUTPUT_NORM,
    MODULES,
    NORMS,
    OUTPUT,
    PLACE,
    RESIDUAL_SCALE,
    WIDTHS,
    Lora,
    Model,
    Sizes,
    Workspace,
)
from .attention import attend_all, rotate_all, take_gates
from .gated import LEAST_TOKENS, add_lora_silu, has_vectors


@njit(inline="always")
def _multiply(where: Array, x: Array, y: Array, scratch: Array, workers: int) -> None:
    addresses = x.ctypes.data, scratch.ctypes.data, y.ctypes.data
    any_linear(where, *addresses, len(x), y.shape[1], x.shape[1], workers)


@njit(inline="always")
def _linear(model: Model, layer: int, group: int, x: Array, y: Array, scratch: Array, workers: int) -> None:
    first = LINEARS + group * WIDTH
    _multiply(model.table[layer, first : first + WIDTH], x, y, scratch, workers)


@njit(inline="always")
def _kinds(model: Model, layer: int, group: int) -> Array:
    row = model.table[layer, MODULES]
    return model.kinds[row, model.groups[row, group] : model.groups[row, group + 1]]


@njit(inline="always")
def _lora(model: Model, layer: int, lora: Lora, x: Array, y: Array, group: int, workers: int) -> None:
    if len(lora.slots):
        kinds, ordinal = _kinds(model, layer, group), model.ordinals[layer, group]
        firsts = model.firsts[model.table[layer, MODULES], group, : len(kinds) + 1]
        add_lora(
            y, x, ordinal, kinds, firsts, lora.arena, lora.offset, lora.rank,
            lora.scaling, lora.scales, lora.sorted_tokens, lora.starts, lora.slots, lora.rounds, workers,
        )  # fmt: skip
        apply_vectors(
            y, ordinal, kinds, firsts, lora.floats, lora.vectors, lora.scales, lora.sorted_tokens, lora.starts,
            lora.slots,
        )  # fmt: skip


@njit(inline="always")
def _norm(
    model: Model, layer: int, norm: int, lora: Lora, tokens: Array, x: Array, stream: Array, is_added: bool,
    output: Array,
) -> None:  # fmt: skip
    """As norm_rows, and then as each token's adapter has it."""
    size, bias = x.shape[1], model.table[layer, NORMS + norm]
    norm_rows(
        x,
        stream,
        carray(pointer(model.table[layer, norm], model.norm), (size,)),
        carray(pointer(bias, model.norm), (size if bias else 0,)),
        model.numbers[layer, norm],
        is_added,
        output,
    )
    if len(lora.slots):
        replace_norms(
            output, stream, tokens, lora.token_slot, model.ordinals[layer, GROUPS + norm],
            model.norm_kinds[model.table[layer, MODULES], norm], lora.floats, lora.vectors, model.numbers[layer, norm],
            bias != 0,
        )  # fmt: skip


@njit(inline="always")
def _enter(model: Model, layer: int, norm: int, lora: Lora, tokens: Array, rooms: Workspace) -> Array:
    """As DecoderLayer._enter: what a block reads, with rooms.x added to the stream."""
    if model.table[layer, norm] and not model.table[layer, FOLLOWS_SUM]:
        _norm(model, layer, norm, lora, tokens, rooms.x, rooms.residual, True, rooms.normed)
        return rooms.normed
    _add(rooms.residual, rooms.x)
    return rooms.residual


@njit(inline="always")
def _leave(model: Model, layer: int, norm: int, lora: Lora, tokens: Array, rooms: Workspace) -> None:
    """As DecoderLayer._leave: rooms.x as it is to be added to the stream."""
    output_norm, scale = norm + MIXER_OUTPUT_NORM - MIXER_NORM, model.numbers[layer, RESIDUAL_SCALE]
    if model.table[layer, output_norm]:
        _norm(model, layer, output_norm, lora, tokens, rooms.x, rooms.x, False, rooms.normed)
        _scale(rooms.normed, np.float32(1), rooms.x)
    if scale != 1:
        _scale(rooms.x, scale, rooms.x)
    if model.table[layer, norm] and model.table[layer, FOLLOWS_SUM]:
        _norm(model, layer, norm, lora, tokens, rooms.x, rooms.residual, True, rooms.normed)
        _scale(rooms.normed, np.float32(1), rooms.residual)
        rooms.x[:] = 0


@njit
def _add(stream: Array, x: Array) -> None:
    for at in range(0, stream.size, LANES):
        store(stream, at, add(load(stream, at), load(x, at)))


@njit
def _scale(x: Array, factor: float, output: Array) -> None:
    for at in range(0, x.size, LANES):
        store(output, at, multiply(load(x, at), splat(factor)))


@njit(inline="always")
def _activate(model: Model, layer: int, lora: Lora, source: Array, inner: Array, active: Array, workers: int) -> None:
    """active from the base's part of inner."""
    code, is_gated = model.table[layer, ACTIVATION], model.table[layer, IS_GATED]
    kinds, ordinal = _kinds(model, layer, INNER), model.ordinals[layer, INNER]
    is_silu = is_gated != 0 and code == SILU
    is_long = is_silu and len(active) >= LEAST_TOKENS and len(lora.slots) != 0 and len(kinds) == 2
    if is_long and not has_vectors(lora.vectors, lora.slots, kinds):
        add_lora_silu(
            inner, source, active, ordinal, kinds, model.firsts[model.table[layer, MODULES], INNER, :3], lora.arena,
            lora.offset, lora.rank, lora.scaling, lora.scales, lora.sorted_tokens, lora.starts, lora.slots, workers,
        )  # fmt: skip
    else:
        _lora(model, layer, lora, source, inner, INNER, workers)
        if not is_silu:
            addresses = np.int64(inner.ctypes.data), np.int64(active.ctypes.data)
            call(model.activate, (*addresses, *active.shape, code, is_gated))
        elif active.size < SERIAL_SILU:
            silu_rows(inner, active)
        else:
            silu_rows_parallel(inner, active)


@njit(inline="always")
def _shaped(flat: Array, model: Model, layer: int, group: int, side: int, tokens: int) -> Array:
    """What is before (0) or behind (1) a group of linears."""
    width = model.table[layer, WIDTHS + 2 * group + side]
    return flat[: tokens * width].reshape(tokens, width)


@njit(inline="always")
def _attend(
    layer: int, model: Model, sizes: Sizes, paged: Paged, lora: Lora, rooms: Workspace, projected: Array,
    attended: Array,
) -> None:  # fmt: skip
    place = model.table[layer, PLACE]
    at = paged.places[place]
    cache = Cache(paged.key[at], paged.value[at], paged.scales[at], paged.static[at])
    has_gate, qkv = model.table[layer, HAS_GATE] != 0, projected
    if has_gate:
        qkv = rooms.qkv
        take_gates(projected, sizes.head_dim, qkv, rooms.gates)
    rotate_all(model, layer, paged, lora, cache, qkv, rooms.query)
    heads = attended.reshape(len(attended), sizes.heads, sizes.head_dim)
    attend_all(place, model, paged, cache, rooms.query, heads)
    if has_gate:
        gate(attended, rooms.gates)


@njit(inline="always")
def _apply_layer(
    layer: int, model: Model, sizes: Sizes, paged: Paged, states: Array, lora: Lora, tokens: Array, rooms: Workspace
) -> None:
    """As DecoderLayer.apply: rooms.x is what was computed last and not yet added to the residual stream."""
    x, scratch, workers = rooms.x, rooms.scratch, paged.workers
    projected = _shaped(rooms.projected, model, layer, INPUTS, 1, len(x))
    attended = _shaped(rooms.attended, model, layer, OUTPUT, 0, len(x))
    inner = _shaped(rooms.inner, model, layer, INNER, 1, len(x))
    active = _shaped(rooms.active, model, layer, DOWN, 0, len(x))
    source = _enter(model, layer, MIXER_NORM, lora, tokens, rooms)
    _linear(model, layer, INPUTS, source, projected, scratch, workers)
    _lora(model, layer, lora, source, projected, INPUTS, workers)
    if model.table[layer, IS_RECURRENT]:
        row, eps = model.table[layer], model.numbers[layer, MIXER_EPS]
        mix(states, row[PLACE], projected, attended, row[CONV], row[DECAY], row[DT_BIAS], row[DELTA_NORM], eps)
    else:
        _attend(layer, model, sizes, paged, lora, rooms, projected, attended)
    _linear(model, layer, OUTPUT, attended, x, scratch, workers)
    _lora(model, layer, lora, attended, x, OUTPUT, workers)
    _leave(model, layer, MIXER_NORM, lora, tokens, rooms)
    source = _enter(model, layer, FEED_FORWARD_NORM, lora, tokens, rooms)
    _linear(model, layer, INNER, source, inner, scratch, workers)
    _activate(model, layer, lora, source, inner, active, workers)
    _linear(model, layer, DOWN, active, x, scratch, workers)
    _lora(model, layer, lora, active, x, DOWN, workers)
    _leave(model, layer, FEED_FORWARD_NORM, lora, tokens, rooms)


@njit(inline="always")
def _embed(
    token_ids: Array, own_tokens: Array, own_embeddings: Array, positions: Array, model: Model, x: Array
) -> None:
    size = x.shape[1]
    for token in range(len(token_ids)):
        for at in range(0, size, LANES):
            store(x, token * size + at, load(model.embedding, token_ids[token] * size + at))
    for row in range(len(own_tokens)):
        x[own_tokens[row]] = own_embeddings[row]
    if model.embedding_scale != 1:
        _scale(x, model.embedding_scale, x)
    if len(model.positions):
        for token in range(len(token_ids)):
            for at in range(0, size, LANES):
                place = token * size + at
                store(x, place, add(load(x, place), load(model.positions, positions[token] * size + at)))


@njit(inline="always")
def _end(model: Model, sample_rows: Array, lora: Lora, rooms: Workspace) -> None:
    """rooms.sampled_normed of the sampled rows."""
    for row in range(len(sample_rows)):
        rooms.sampled_x[row] = rooms.x[sample_rows[row]]
        rooms.sampled_residual[row] = rooms.residual[sample_rows[row]]
    if not len(model.norm):
        _add(rooms.sampled_residual, rooms.sampled_x)
        _scale(rooms.sampled_residual, np.float32(1), rooms.sampled_normed)
        return
    norm_rows(
        rooms.sampled_x, rooms.sampled_residual, model.norm, model.norm_bias, model.eps, True, rooms.sampled_normed
    )
    if len(lora.slots):
        replace_norms(
            rooms.sampled_normed, rooms.sampled_residual, sample_rows, lora.token_slot, 0,
            model.norm_kinds[0, LAST_NORM], lora.floats, lora.vectors, model.eps, len(model.norm_bias) != 0,
        )  # fmt: skip


@njit(cache=True, nogil=True)
def forward(
    token_ids: Array, own_tokens: Array, own_embeddings: Array, sample_rows: Array, logits: Array, rooms: Workspace,
    model: Model, sizes: Sizes, paged: Paged, states: Array, lora: Lora,
) -> None:  # fmt: skip
    """token_ids [T] -> logits [R, V] of the tokens `sample_rows` [R]; keys and values of all tokens go to the cache.

    The tokens `own_tokens` [n] have the embeddings [n, C] instead of the base's. `states`: fields of
    `delta_net/kernels/mix.py`, where layers are recurrent.
    """
    _embed(token_ids, own_tokens, own_embeddings, paged.positions, model, rooms.x)
    rooms.residual[:] = 0
    tokens = np.arange(len(token_ids))
    for layer in range(len(model.table)):
        _apply_layer(layer, model, sizes, paged, states, lora, tokens, rooms)
    if len(sample_rows):
        _end(model, sample_rows, lora, rooms)
        _multiply(model.head, rooms.sampled_normed, logits, rooms.scratch, paged.workers)
