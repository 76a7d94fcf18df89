# mypy: allow-untyped-decorators
"""Adapters on experts: rows are grouped by (expert, adapter), and those of each expert are one batch of add_lora.

Shapes: T tokens, A adapters of a token, E experts, P rows, those of an expert side by side. A row's result is the same
bits whatever other rows there are, as of `add_lora`.
"""

from typing import Final

import numpy as np
from numba import njit, prange

from loraplex.lora.kernels.claim import claim, counter
from loraplex.lora.kernels.cpu import add_lora, add_lora_alone
from loraplex.lora.kernels.vectors import apply_vectors

from ...kernels.vector import Array


@njit
def _acts(slot: int, kinds: Array, ordinal: int, rank: Array, vectors: Array) -> bool:
    """Whether the adapter of a slot changes this expert."""
    found = False
    for kind in kinds:
        found = found or rank[slot, kind, ordinal] > 0 or vectors[slot, kind] >= 0
    return found


@njit
def _group(
    slots: Array, tokens: Array, kinds: Array, ordinal: int, rank: Array, vectors: Array, order: Array, starts: Array,
    owners: Array, rounds: Array,
) -> int:  # fmt: skip
    """slots [T, A] of tokens, tokens [R] of an expert's rows -> as in LoraBatch: order [R A] of rows, starts and owners
    of the segments, rounds [A + 1]. Returns how many segments there are."""
    count, segments = 0, 0
    rounds[0] = 0
    for place in range(slots.shape[1]):
        first = count
        for row in range(len(tokens)):
            slot = slots[tokens[row], place]
            if slot >= 0 and _acts(slot, kinds, ordinal, rank, vectors):
                at = count
                while at > first and slots[tokens[order[at - 1]], place] > slot:
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = row
                count += 1
        for at in range(first, count):
            slot = slots[tokens[order[at]], place]
            if at == first or slot != owners[segments - 1]:
                starts[segments], owners[segments] = at, slot
                segments += 1
        rounds[place + 1] = segments
    starts[segments] = count
    return segments


SHARED_OUT: Final = 4
"""Experts with rows for each worker, from which on a worker takes whole experts: all of them start and wait once then,
and not twice for each expert."""


@njit
def _add(
    y: Array, x: Array, tokens: Array, kinds: Array, ordinal: int, firsts: Array, arena: Array, offset: Array,
    rank: Array, scaling: Array, floats: Array, vectors: Array, slots: Array, factors: Array, workers: int,
) -> None:  # fmt: skip
    """As add_expert_lora, to the rows [R] of one expert. workers 0: the thread that calls."""
    places = slots.shape[1]
    most = len(tokens) * places
    order, starts = np.empty(most, np.int32), np.empty(most + 1, np.int32)
    owners, rounds = np.empty(most, np.int32), np.empty(places + 1, np.int32)
    count = _group(slots, tokens, kinds, ordinal, rank, vectors, order, starts, owners, rounds)
    if not count:
        return
    order, starts, owners = order[: starts[count]], starts[: count + 1], owners[:count]
    scales = np.empty(len(order), np.float32)
    for place in range(places):
        for at in range(starts[rounds[place]], starts[rounds[place + 1]]):
            scales[at] = factors[tokens[order[at]], place]
    if workers:
        add_lora(
            y, x, ordinal, kinds, firsts, arena, offset, rank, scaling, scales, order, starts, owners, rounds, workers
        )
    else:
        add_lora_alone(y, x, ordinal, kinds, firsts, arena, offset, rank, scaling, scales, order, starts, owners)
    apply_vectors(y, ordinal, kinds, firsts, floats, vectors, scales, order, starts, owners)


@njit(parallel=True, cache=True, nogil=True)
def add_expert_lora(
    y: Array, x: Array, rows: Array, tokens: Array, kinds: Array, ordinals: Array, firsts: Array, arena: Array,
    offset: Array, rank: Array, scaling: Array, floats: Array, vectors: Array, slots: Array, factors: Array,
    workers: int,
) -> None:  # fmt: skip
    """y [P, outputs] += each row's adapters on its expert, x [P, inputs], both float32.

    rows [E + 1]: where each expert's rows begin; tokens [P]: the token of each row; kinds [E, members]: rows of the
    page table; ordinals [E]; slots and factors [T, A], as token_slot and token_scale of LoraBatch; the others as in
    add_lora.
    """
    touched = np.flatnonzero(rows[1:] > rows[:-1])
    if len(touched) < SHARED_OUT * workers:
        for expert in touched:
            first, last = rows[expert], rows[expert + 1]
            _add(
                y[first:last], x[first:last], tokens[first:last], kinds[expert], ordinals[expert], firsts, arena,
                offset, rank, scaling, floats, vectors, slots, factors, workers,
            )  # fmt: skip
        return
    taken = counter(workers)
    for worker in prange(workers):
        at = np.int64(worker)
        while at < len(touched):
            expert = touched[at]
            first, last = rows[expert], rows[expert + 1]
            _add(
                y[first:last], x[first:last], tokens[first:last], kinds[expert], ordinals[expert], firsts, arena,
                offset, rank, scaling, floats, vectors, slots, factors, 0,
            )  # fmt: skip
            at = claim(taken)
