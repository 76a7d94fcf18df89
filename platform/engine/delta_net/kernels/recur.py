"""The gated delta rule, token by token, and the gated norm behind it.

    S = decay S + k (x) beta (v - (decay S)^T k)        o = S^T q        y = norm(o) * weight * silu(z)

Shapes: T tokens, H value heads of size D, Q key heads of size E (both multiples of 16), N slots. The state [N, H, E, D]
is float32. Columns of a state do not know each other, so some of them at a time stay in the nearest cache while all
tokens of a sequence pass; a work item is one head of one sequence. Each token's operations and their order are the same
wherever a step ends, and whoever its neighbours are.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange

from loraplex.quant.kernels.instructions.claim import claim

from ...kernels.silu import silu_value
from ...kernels.vector import (
    LANES,
    Array,
    Shape,
    add_products,
    load,
    load_tile,
    multiply,
    multiply_add,
    splat,
    store,
    store_tile,
    total,
    zeros,
)
from .convolve import Sequences

ONE: Final = (0,)
FACTORS: Final = 4
DECAY, BETA, TAKEN, UNIT = range(FACTORS)
"""Of a token: what the state is multiplied by; what a value is; minus the product of both, which takes out what the
state knows of it already; and 1."""


class Layer(NamedTuple):
    """What one layer's recurrence reads."""

    mixed: Any
    """[T, K], as norm_heads leaves it"""
    gate: Any
    """[T, H D]"""
    beta: Any
    """[T, H], before its sigmoid"""
    step: Any
    """[T, H], before dt_bias and softplus"""
    decay: Any
    """[H]"""
    dt_bias: Any
    """[H]"""
    norm: Any
    """[D]"""
    eps: Any


@njit(cache=True, nogil=True, parallel=True)
def recur(
    layer: Layer, state: Array, step: Sequences, columns: Shape, output: Array, counter: Array, workers: int
) -> None:
    """-> output [T, H D]. `columns`: vectors of a state's row that are worked on at a time; they divide it."""
    for _ in prange(workers):
        _work(layer, state, step, columns, output, counter)


@njit(cache=True, nogil=True)
def _work(layer: Layer, state: Array, step: Sequences, columns: Shape, output: Array, counter: Array) -> None:
    heads, size, width = state.shape[1], state.shape[2], len(columns) * LANES
    sequences = len(step.slots)
    block = np.empty(size * width, np.float32)
    claimed = claim(counter)
    while claimed < heads * sequences:
        sequence, head = claimed % sequences, claimed // sequences
        first, last = step.query_starts[sequence], step.query_starts[sequence + 1]
        factors = _factors(layer, head, first, last)
        for column in range(0, state.shape[3], width):
            _pass(layer, state, step, sequence, head, column, factors, block, columns, output)
        for token in range(first, last):
            _finish(layer, output, token, head, state.shape[3])
        claimed = claim(counter)


# As numpy computes: an overflow becomes infinity, and its request fails alone.
@njit(cache=True, nogil=True, error_model="numpy")
def _factors(layer: Layer, head: int, first: int, last: int) -> Array:
    """[tokens, FACTORS] float32."""
    factors = np.empty((last - first, FACTORS), np.float32)
    for token in range(first, last):
        a = np.float64(layer.step[token, head] + layer.dt_bias[head])
        softplus = a if a > 20 else math.log1p(math.exp(a))
        row = factors[token - first]
        row[DECAY] = math.exp(-np.float64(layer.decay[head]) * softplus)
        row[BETA] = 1 / (1 + math.exp(-np.float64(layer.beta[token, head])))
        row[TAKEN], row[UNIT] = -row[DECAY] * row[BETA], 1
    return factors


@njit(cache=True, nogil=True)
def _pass(
    layer: Layer, state: Array, step: Sequences, sequence: int, head: int, column: int, factors: Array, block: Array,
    columns: Shape, output: Array,
) -> None:  # fmt: skip
    """All tokens of a sequence through some columns of one head's state, from `column` on."""
    size, width = state.shape[2:]
    first, last = step.query_starts[sequence], step.query_starts[sequence + 1]
    if step.fresh[sequence]:
        block[:] = np.float32(0)
    else:
        _load_block(state, step.slots[sequence], head, column, block, columns)
    kept, end = step.kept_starts[sequence], step.kept_starts[sequence + 1]
    keys = (layer.mixed.shape[1] - output.shape[1]) // 2
    group = state.shape[1] * size // keys
    for token in range(first, last):
        row, target = np.int64(token) * layer.mixed.shape[1], np.int64(token) * output.shape[1]
        query, value = row + head // group * size, row + 2 * keys + head * width + column
        places = query, query + keys, value, target + head * width + column
        _token(layer.mixed, places, factors, (token - first) * FACTORS, block, columns, output)
        while kept < end and step.kept_tokens[kept] == token:
            _store_block(state, step.kept_slots[kept], head, column, block, columns)
            kept += 1
    _store_block(state, step.slots[sequence], head, column, block, columns)


@njit(inline="always")
def _token(
    mixed: Array, places: tuple[int, int, int, int], factors: Array, at: int, block: Array, columns: Shape,
    output: Array,
) -> None:  # fmt: skip
    """One token through a block [E, columns]. `places`: of its query, key and value in `mixed`, and in the output. Even
    and odd rows are summed apart: a sum then waits for itself less often."""
    query, key, value, target = places
    width = len(columns) * LANES
    end = len(block)
    even, odd = zeros(ONE, columns), zeros(ONE, columns)
    for row in range(0, end, 2 * width):
        even = add_products(even, mixed, key, 0, load_tile(block, row, 0, ONE, columns))
        odd = add_products(odd, mixed, key + 1, 0, load_tile(block, row + width, 0, ONE, columns))
        key += 2
    change = add_products(zeros(ONE, columns), factors, at + BETA, 0, load_tile(mixed, value, 0, ONE, columns))
    change = add_products(change, factors, at + TAKEN, 0, even)
    change = add_products(change, factors, at + TAKEN, 0, odd)
    even, odd = zeros(ONE, columns), zeros(ONE, columns)
    key = places[1]
    for row in range(0, end, 2 * width):
        lower = add_products(zeros(ONE, columns), factors, at + DECAY, 0, load_tile(block, row, 0, ONE, columns))
        upper = add_products(
            zeros(ONE, columns), factors, at + DECAY, 0, load_tile(block, row + width, 0, ONE, columns)
        )
        lower, upper = add_products(lower, mixed, key, 0, change), add_products(upper, mixed, key + 1, 0, change)
        store_tile(block, row, 0, ONE, columns, lower)
        store_tile(block, row + width, 0, ONE, columns, upper)
        even = add_products(even, mixed, query, 0, lower)
        odd = add_products(odd, mixed, query + 1, 0, upper)
        key += 2
        query += 2
    store_tile(output, target, 0, ONE, columns, add_products(odd, factors, at + UNIT, 0, even))


@njit(cache=True, nogil=True)
def _load_block(state: Array, slot: int, head: int, column: int, block: Array, columns: Shape) -> None:
    size, values, width = state.shape[2], state.shape[3], len(columns) * LANES
    start = (np.int64(slot) * state.shape[1] + head) * size * values + column
    for row in range(size):
        tile = load_tile(state, start + row * values, 0, ONE, columns)
        store_tile(block, row * width, 0, ONE, columns, tile)


@njit(cache=True, nogil=True)
def _store_block(state: Array, slot: int, head: int, column: int, block: Array, columns: Shape) -> None:
    size, values, width = state.shape[2], state.shape[3], len(columns) * LANES
    start = (np.int64(slot) * state.shape[1] + head) * size * values + column
    for row in range(size):
        tile = load_tile(block, row * width, 0, ONE, columns)
        store_tile(state, start + row * values, 0, ONE, columns, tile)


@njit(cache=True, nogil=True, error_model="numpy")
def _finish(layer: Layer, output: Array, token: int, head: int, size: int) -> None:
    """Norm and gate of one head of one token, in place."""
    start = np.int64(token) * output.shape[1] + head * size
    squares = splat(np.float32(0))
    for at in range(start, start + size, LANES):
        values = load(output, at)
        squares = multiply_add(values, values, squares)
    factor = splat(np.float32(1) / np.float32(math.sqrt(total(squares) / np.float32(size) + layer.eps)))
    for at in range(0, size, LANES):
        normed = multiply(multiply(load(output, start + at), factor), load(layer.norm, at))
        store(output, start + at, multiply(normed, silu_value(load(layer.gate, start + at))))
