"""Paged attention on the CPU: softmax(scale * Q K^T) V over a cache of tiles, for decode and prefill alike.

A layer may cap its scores, and may have sinks: the sums of the softmax then begin with a logit of the head.

Shapes: T tokens, H query heads, G KV heads, D head size (a multiple of 16), N blocks, B tiles of 16 keys in a block.
The key cache [N, G, B, D, 16] has sixteen keys side by side, the value cache [N, G, B, 16, D] sixteen values one below
the other, so that both products run over whole vectors. The query heads of one KV head are rows of one matrix: a tile
of `rows` of them stays in registers while keys and values stream by. Keys come in spans that start at multiples of
SPAN, with a running maximum and sum; a row's operations and their order depend on its own position only.

Keys and values of 8 bits have scales [N, G, B, 2, 16]: of the sixteen keys of a tile, then of its values. They become
float32 as they are loaded and all sums are float32; the scales multiply what whole keys and values are worth: the
scores, and the weights. Static scales, one for all keys and one for all values of a head, multiply the queries and the
results instead.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit

from loraplex.quant.kernels.instructions.claim import claim

from ...kernels.vector import (
    Array,
    Shape,
    add,
    add_products,
    exp,
    largest,
    load,
    load_tile,
    maximum,
    multiply,
    multiply_add,
    multiply_columns,
    prefetch,
    splat,
    store,
    store_tile,
    tanh,
    total,
    zeros,
)

TILE: Final = 16
"""Keys in a tile: the lanes of a vector."""
SPAN: Final = 256
"""Keys of one softmax step."""
KEY, VALUE = range(2)
ONE: Final = (0,)
PAIR: Final = (0, 0)
LOWEST: Final = np.float32(-1e30)
"""Stands for no score yet; finite, so that differences stay numbers."""

ITEM_FIELDS: Final = 7
SEQUENCE, FIRST_TOKEN, TOKENS, POSITION, KEY_BEGIN, KEY_END, PARTIAL = range(ITEM_FIELDS)
"""Columns of a work item: TOKENS queries from FIRST_TOKEN, the first at POSITION, against keys [KEY_BEGIN, KEY_END).
Its sums go to slot PARTIAL when other items see the rest of its keys; -1: to the output."""


class Cache(NamedTuple):
    """One layer's tiles, as stored (kernels/storage.py)."""

    key: Any
    value: Any
    scales: Any
    """uint16 (bfloat16 bits); without elements where keys and values have static scales or more than 8 bits"""
    static: Any
    """[2, G] float32, static scales of keys and of values; 1 where there are none"""


class Scores(NamedTuple):
    """What a layer makes of the products of queries and keys."""

    scale: Any
    """float32"""
    soft_cap: Any
    """float32; 0: none"""
    window: Any
    sinks: Any
    """[H] float32; without elements where there are none"""


class Step(NamedTuple):
    """What all items of a call share."""

    query: Any
    """[T, H, D]"""
    block_tables: Any
    """[S, P] int32"""
    output: Any
    """[T, H, D]"""
    partial_sums: Any
    """[partials, H, D] float32"""
    partial_states: Any
    """[partials, H, 2] float32, maximum and sum of weights"""


class Scratch(NamedTuple):
    """One worker's memory for one item; `rows` are (token, head of the group), padded to whole register tiles."""

    query: Any
    """[rows, D] float32, scaled"""
    sums: Any
    """[rows, D] float32, weighted values so far"""
    state: Any
    """[rows, 2] float32, maximum and sum of weights so far"""
    scores: Any
    """[rows of a register tile, SPAN] float32"""
    tiles: Any
    """[SPAN / TILE] int64, where the span's tiles are in the cache"""


@njit(inline="always")
def work(
    step: Step,
    cache: Cache,
    items: Array,
    counter: Array,
    scores: Scores,
    most: int,
    rows: Shape,
    columns: Shape,
) -> None:
    """One worker's share of `items`, none of more than `most` rows, for every KV head."""
    kv_heads, size = cache.key.shape[1], step.query.shape[2]
    scratch = Scratch(
        np.empty((most, size), np.float32),
        np.empty((most, size), np.float32),
        np.empty((most, 2), np.float32),
        np.empty((len(rows), SPAN), np.float32),
        np.empty(SPAN // TILE, np.int64),
    )
    claimed = claim(counter)
    while claimed < len(items) * kv_heads:
        item, head = items[claimed // kv_heads], claimed % kv_heads
        _attend_item(step, cache, scratch, item, head, scores, rows, columns)
        claimed = claim(counter)


@njit(inline="always")
def _attend_item(
    step: Step,
    cache: Cache,
    scratch: Scratch,
    item: Array,
    head: int,
    scores: Scores,
    rows: Shape,
    columns: Shape,
) -> None:
    group = step.query.shape[1] // cache.key.shape[1]
    padded = (item[TOKENS] * group + len(rows) - 1) // len(rows) * len(rows)
    _gather_query(step.query, scratch, item, head, group, padded, scores.scale * cache.static[KEY, head])
    if scores.sinks.size and item[KEY_BEGIN] == 0:
        _begin_with_sinks(scratch, scores.sinks, item[TOKENS] * group, head, group)
    oldest = max(item[KEY_BEGIN], item[POSITION] - scores.window + 1)
    for start in range(oldest // SPAN * SPAN, item[KEY_END], SPAN):
        end = min(start + SPAN, item[KEY_END])
        _find_tiles(step.block_tables[item[SEQUENCE]], cache.key.shape, head, start, end, scratch.tiles)
        for row in range(0, padded, len(rows)):
            _attend_span(cache, scratch, start, end, item[POSITION], group, scores, row, rows, columns)
    if item[PARTIAL] < 0:
        _finish(step.output, scratch, item, head, group, cache.static[VALUE, head])
    else:
        _keep(step, scratch, item[PARTIAL], head, group, cache.static[VALUE, head])


@njit(cache=True, nogil=True)
def _gather_query(
    query: Array, scratch: Scratch, item: Array, head: int, group: int, padded: int, scale: float
) -> None:
    size = query.shape[2]
    for at in range(0, padded * size, TILE):
        store(scratch.query, at, splat(np.float32(0)))
        store(scratch.sums, at, splat(np.float32(0)))
    for row in range(padded):
        scratch.state[row, 0], scratch.state[row, 1] = LOWEST, 0
    for row in range(item[TOKENS] * group):
        token = item[FIRST_TOKEN] + row // group
        source = (token * query.shape[1] + head * group + row % group) * size
        for d in range(0, size, TILE):
            store(scratch.query, row * size + d, multiply(load(query, source + d), splat(scale)))


@njit(cache=True, nogil=True)
def _begin_with_sinks(scratch: Scratch, sinks: Array, rows: int, head: int, group: int) -> None:
    """One weight of 1 at the sink's logit, for no value. Of items that share a query, that of the first keys has it."""
    for row in range(rows):
        scratch.state[row, 0], scratch.state[row, 1] = sinks[head * group + row % group], 1


@njit(cache=True, nogil=True)
def _find_tiles(blocks: Array, shape: Array, head: int, start: int, end: int, tiles: Array) -> None:
    per_block = shape[2]
    for index in range((end - start + TILE - 1) // TILE):
        tile = start // TILE + index
        tiles[index] = (np.int64(blocks[tile // per_block]) * shape[1] + head) * per_block + tile % per_block


@njit(inline="always")
def _attend_span(
    cache: Cache,
    scratch: Scratch,
    start: int,
    end: int,
    position: int,
    group: int,
    scores: Scores,
    row: int,
    rows: Shape,
    columns: Shape,
) -> None:
    """One register tile of rows, from `row`, against the keys [start, end) of a span; hidden keys get the weight 0."""
    window = scores.window
    end = min(end, position + (row + len(rows) - 1) // group + 1)
    if end <= max(start, position + row // group - window + 1):
        return
    count = end - start
    _score(cache, scratch, row, count, rows)
    if scores.soft_cap > 0:
        _cap(scratch.scores, len(rows), _round_up(count), scores.soft_cap)
    for index in range(len(rows)):
        here = position + (row + index) // group
        filled = _round_up(count)
        for hidden in range(min(here + 1, end) - start, filled):
            scratch.scores[index, hidden] = -np.inf
        for hidden in range(min(filled, here + 1 - window - start)):
            scratch.scores[index, hidden] = -np.inf
        _weigh(scratch, row + index, index, filled)
        if cache.scales.size:
            _weigh_values(cache.scales, scratch, index, count)
    _blend(cache.value, scratch, row, count, rows, columns)


@njit(inline="always")
def _round_up(count: int) -> int:
    """Keys are scored two tiles at a time."""
    return (count + 2 * TILE - 1) // (2 * TILE) * (2 * TILE)


@njit(cache=True, nogil=True)
def _score(cache: Cache, scratch: Scratch, row: int, count: int, rows: Shape) -> None:
    size = scratch.query.shape[1]
    last = (count - 1) // TILE
    for first in range(0, count, 2 * TILE):
        tiles = scratch.tiles[first // TILE], scratch.tiles[min(first // TILE + 1, last)]
        left, right = tiles[0] * size * TILE, tiles[1] * size * TILE
        tile = zeros(rows, PAIR)
        if row == 0:
            _fetch(cache, scratch, first // TILE, last)
        for d in range(0, size, 2):
            lefts = load_tile(cache.key, left + d * TILE, 0, ONE, PAIR)
            rights = load_tile(cache.key, right + d * TILE, 0, ONE, PAIR)
            tile = add_products(tile, scratch.query, row * size + d, size, (lefts[0], rights[0]))
            tile = add_products(tile, scratch.query, row * size + d + 1, size, (lefts[1], rights[1]))
        if cache.scales.size:
            scales = (load(cache.scales, tiles[0] * 2 * TILE), load(cache.scales, tiles[1] * 2 * TILE))
            tile = multiply_columns(tile, scales)
        store_tile(scratch.scores, first, SPAN, rows, PAIR, tile)


@njit(cache=True, nogil=True)
def _cap(scores: Array, rows: int, count: int, soft_cap: float) -> None:
    for row in range(rows):
        for key in range(row * SPAN, row * SPAN + count, TILE):
            share = tanh(multiply(load(scores, key), splat(np.float32(1) / soft_cap)))
            store(scores, key, multiply(share, splat(soft_cap)))


@njit(cache=True, nogil=True)
def _fetch(cache: Cache, scratch: Scratch, first: int, last: int) -> None:
    """Ask for what is needed after the scores of the tiles `first` and `first + 1`: the next keys, and the values."""
    size = cache.key.shape[3] * TILE
    line = 64 // cache.key.itemsize
    for index in range(first, min(first + 2, last + 1)):
        for at in range(scratch.tiles[index] * size, (scratch.tiles[index] + 1) * size, line):
            prefetch(cache.value, at)
    for index in range(first + 2, min(first + 4, last + 1)):
        for at in range(scratch.tiles[index] * size, (scratch.tiles[index] + 1) * size, line):
            prefetch(cache.key, at)
        if cache.scales.size:
            prefetch(cache.scales, scratch.tiles[index] * 2 * TILE)


@njit(inline="always")
def _weigh(scratch: Scratch, row: int, index: int, count: int) -> None:
    """Turn a row's scores into exp(score - running maximum), and bring its older sums to that maximum."""
    scores, state, begin = scratch.scores, scratch.state, index * SPAN
    top = splat(LOWEST)
    for key in range(begin, begin + count, TILE):
        top = maximum(load(scores, key), top)
    peak = max(largest(top), state[row, 0])
    if peak > state[row, 0]:
        _shrink(scratch, row, np.float32(math.exp(state[row, 0] - peak)))
        state[row, 0] = peak
    weight_sum = splat(np.float32(0))
    for key in range(begin, begin + count, TILE):
        weights = exp(add(load(scores, key), splat(-peak)))
        store(scores, key, weights)
        weight_sum = add(weight_sum, weights)
    state[row, 1] += total(weight_sum)


@njit(inline="always")
def _weigh_values(scale: Array, scratch: Scratch, index: int, count: int) -> None:
    """A row's weights times what its values are worth, after the sum of the weights was taken."""
    for first in range(0, count, TILE):
        at = index * SPAN + first
        values = load(scale, (scratch.tiles[first // TILE] * 2 + 1) * TILE)
        store(scratch.scores, at, multiply(load(scratch.scores, at), values))


@njit(cache=True, nogil=True)
def _shrink(scratch: Scratch, row: int, factor: float) -> None:
    size = scratch.sums.shape[1]
    scratch.state[row, 1] *= factor
    for d in range(row * size, (row + 1) * size, TILE):
        store(scratch.sums, d, multiply(load(scratch.sums, d), splat(factor)))


@njit(cache=True, nogil=True)
def _blend(value: Array, scratch: Scratch, row: int, count: int, rows: Shape, columns: Shape) -> None:
    """Add the weighted values. Only the first `count`: what lies behind may be another request's leavings."""
    size = scratch.sums.shape[1]
    for column in range(0, size, TILE * len(columns)):
        at = row * size + column
        tile = load_tile(scratch.sums, at, size, rows, columns)
        for first in range(0, count, TILE):
            start = scratch.tiles[first // TILE] * TILE * size + column
            for key in range(min(TILE, count - first)):
                values = load_tile(value, start + key * size, 0, ONE, columns)
                tile = add_products(tile, scratch.scores, first + key, SPAN, values)
        store_tile(scratch.sums, at, size, rows, columns, tile)


# As numpy divides, and not with an exception that would end everybody's step: where no key has a weight, the result is
# NaN, and its request fails.
@njit(cache=True, nogil=True, error_model="numpy")
def _finish(output: Array, scratch: Scratch, item: Array, head: int, group: int, worth: float) -> None:
    """`worth` is what the stored values are multiplied by; in `_keep` too."""
    size = output.shape[2]
    for row in range(item[TOKENS] * group):
        token = item[FIRST_TOKEN] + row // group
        target = (token * output.shape[1] + head * group + row % group) * size
        share = splat(worth / scratch.state[row, 1])
        for d in range(0, size, TILE):
            store(output, target + d, multiply(load(scratch.sums, row * size + d), share))


@njit(cache=True, nogil=True)
def _keep(step: Step, scratch: Scratch, partial: int, head: int, group: int, worth: float) -> None:
    heads, size = step.output.shape[1:]
    for row in range(group):
        target = partial * heads + head * group + row
        for d in range(0, size, TILE):
            store(step.partial_sums, target * size + d, multiply(load(scratch.sums, row * size + d), splat(worth)))
        for field in range(2):
            step.partial_states[partial, head * group + row, field] = scratch.state[row, field]


@njit(cache=True, nogil=True, error_model="numpy")
def merge(step: Step, merges: Array) -> None:
    """merges [n, 3]: token, its first partial, how many. Sums them, each brought to the largest maximum."""
    heads, size = step.output.shape[1:]
    for index in range(len(merges)):
        token, first, count = merges[index]
        for head in range(heads):
            states = step.partial_states[first : first + count, head]
            shares = np.exp(states[:, 0] - states[:, 0].max())
            shares /= (shares * states[:, 1]).sum()
            for d in range(0, size, TILE):
                summed = splat(np.float32(0))
                for partial in range(count):
                    at = ((first + partial) * heads + head) * size + d
                    summed = multiply_add(load(step.partial_sums, at), splat(shares[partial]), summed)
                store(step.output, (token * heads + head) * size + d, summed)
