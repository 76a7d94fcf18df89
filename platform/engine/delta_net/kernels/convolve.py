"""The causal convolution of a gated delta net, silu, and the norms of queries and keys.

    y[t, c] = silu(sum over taps j of weight[j, c] * x[t - (taps - 1) + j, c])

Shapes: T tokens, S sequences, K channels (a multiple of 16), N slots. The state [N, taps - 1, K] of a slot has the last
inputs of its sequence. A work item is some channels of one sequence: it reads and writes its part of a state alone.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit, prange

from loraplex.quant.kernels.instructions.claim import claim

from ...kernels.silu import silu_value
from ...kernels.vector import LANES, Array, load, multiply, multiply_add, splat, store, total

PANEL: Final = 16 * LANES
"""Channels of a work item."""
NORM_EPS: Final = np.float32(1e-6)


class Sequences(NamedTuple):
    """What the kernels of a step share."""

    query_starts: Any
    """[S + 1] int32"""
    fresh: Any
    """[S] bool: it starts at position 0, from a state of zeros"""
    slots: Any
    """[S] int32: where its state is, and is left"""
    kept_starts: Any
    """[S + 1] int32: sequence s keeps states kept_starts[s] to kept_starts[s + 1]"""
    kept_tokens: Any
    """[kept] int32: the token of the step after which, ascending in each sequence"""
    kept_slots: Any
    """[kept] int32: where"""


@njit(cache=True, nogil=True, parallel=True)
def convolve(
    x: Array, weight: Array, state: Array, step: Sequences, output: Array, counter: Array, workers: int
) -> None:
    """x [T, K] -> output [T, K]; brings the states to the last token of each sequence."""
    for _ in prange(workers):
        _work(x, weight, state, step, output, counter)


@njit(cache=True, nogil=True)
def _work(x: Array, weight: Array, state: Array, step: Sequences, output: Array, counter: Array) -> None:
    channels, sequences = x.shape[1], len(step.slots)
    panels = (channels + PANEL - 1) // PANEL
    claimed = claim(counter)
    while claimed < panels * sequences:
        sequence, begin = claimed % sequences, claimed // sequences * PANEL
        _panel(x, weight, state, step, sequence, begin, min(begin + PANEL, channels), output)
        claimed = claim(counter)


@njit(cache=True, nogil=True)
def _panel(
    x: Array, weight: Array, state: Array, step: Sequences, sequence: int, begin: int, end: int, output: Array
) -> None:
    first, last = step.query_starts[sequence], step.query_starts[sequence + 1]
    slot, fresh, taps, channels = step.slots[sequence], step.fresh[sequence], weight.shape[0], x.shape[1]
    for token in range(first, last):
        oldest = token - first - (taps - 1)
        for channel in range(begin, end, LANES):
            summed = splat(np.float32(0))
            if oldest >= 0:
                at = np.int64(first + oldest) * channels + channel
                for tap in range(taps):
                    summed = multiply_add(load(x, at), load(weight, tap * channels + channel), summed)
                    at += channels
            else:
                for tap in range(taps):
                    value = _input(x, state, first, oldest + tap, slot, fresh, channel)
                    summed = multiply_add(value, load(weight, tap * channels + channel), summed)
            store(output, np.int64(token) * channels + channel, silu_value(summed))
    # Those kept on the way read the old state, which the last one overwrites.
    for kept in range(step.kept_starts[sequence], step.kept_starts[sequence + 1]):
        count = step.kept_tokens[kept] + 1 - first
        _keep(x, state, first, count, slot, fresh, step.kept_slots[kept], begin, end)
    _keep(x, state, first, last - first, slot, fresh, slot, begin, end)


@njit(inline="always")
def _input(x: Array, state: Array, first: int, at: int, slot: int, fresh: bool, channel: int) -> Any:
    """Input number `at` of the sequence's tokens in this step; negative ones come from its state."""
    if at >= 0:
        return load(x, np.int64(first + at) * x.shape[1] + channel)
    if fresh:
        return splat(np.float32(0))
    row = np.int64(slot) * state.shape[1] + at + state.shape[1]
    return load(state, row * state.shape[2] + channel)


@njit(cache=True, nogil=True)
def _keep(
    x: Array, state: Array, first: int, count: int, slot: int, fresh: bool, target: int, begin: int, end: int
) -> None:
    """The state after `count` of the tokens. In place it reads each row before it is written."""
    rows = state.shape[1]
    for row in range(rows):
        for channel in range(begin, end, LANES):
            value = _input(x, state, first, count - rows + row, slot, fresh, channel)
            store(state, (np.int64(target) * rows + row) * state.shape[2] + channel, value)


@njit(cache=True, nogil=True, parallel=True)
def norm_heads(mixed: Array, heads: int, size: int, workers: int) -> None:
    """In place: mixed [T, K] begins with `heads` queries and as many keys of `size`. Both get the length 1, and queries
    the factor size^-0.5."""
    for worker in prange(workers):
        first, last = len(mixed) * worker // workers, len(mixed) * (worker + 1) // workers
        for token in range(first, last):
            for head in range(2 * heads):
                scale = np.float32(1 / math.sqrt(size)) if head < heads else np.float32(1)
                _norm(mixed, token * mixed.shape[1] + head * size, size, scale)


@njit(cache=True, nogil=True)
def _norm(mixed: Array, at: int, size: int, scale: np.float32) -> None:
    squares = splat(np.float32(0))
    for place in range(at, at + size, LANES):
        values = load(mixed, place)
        squares = multiply_add(values, values, squares)
    factor = splat(np.float32(scale / np.float32(math.sqrt(total(squares) + NORM_EPS))))
    for place in range(at, at + size, LANES):
        store(mixed, place, multiply(load(mixed, place), factor))
