"""Where a row's most likely tokens reach a count or a mass: a search for a value, 16 guesses at a time (triton).

No sort: equal values are one step of the search, told apart by their ids where a token must be named. Values are looked
at as keys, the integers of `order`.
"""

from typing import Final, NamedTuple

import triton
import triton.language as tl

from .adjust import load_adjusted, measure
from .layout import Buffers
from .numbers import order

GUESSES: Final = tl.constexpr(16)
NOTHING: Final = tl.constexpr(-(1 << 40))
"""Below every key."""


class Source(NamedTuple):
    """Where values are: in the list of candidates or in the row itself."""

    count: tl.tensor
    listed: tl.tensor
    top: tl.tensor
    """The largest of them."""


@triton.jit
def search(
    needed: tl.tensor, low: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, BY_COUNT: tl.constexpr,
    SHAPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The largest key from which on there is as much as `needed`, as there is from `low` on; and how much there is
    above that key."""
    high, above = order(source.top).to(tl.int64), needed * 0
    lanes = tl.arange(0, GUESSES)
    while low < high:
        step = (high - low + GUESSES - 1) // GUESSES
        amounts = amounts_from(low + (lanes + 1) * step, source, buffers, row, BY_COUNT, SHAPE)
        reached = tl.sum((amounts >= needed).to(tl.int32), 0)
        low += reached * step
        if low + step - 1 < high:
            high = low + step - 1
            above = tl.sum(tl.where(lanes == reached, amounts, 0), 0)
    return low, above


@triton.jit
def amounts_from(
    keys: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, BY_COUNT: tl.constexpr, SHAPE: tl.constexpr
) -> tl.tensor:
    """Count or mass of the values that are at least each of `keys` [GUESSES], as int64."""
    totals = tl.zeros((GUESSES,), tl.int64)
    for first in range(0, source.count, SHAPE.tile):
        own, masses = load_tile(first, source, buffers, row, SHAPE)
        if BY_COUNT:
            masses = tl.full((SHAPE.tile,), 1, tl.int64)
        totals += tl.sum(tl.where(own[None, :] >= keys[:, None], masses[None, :], 0), 1)
    return totals


@triton.jit
def mass_from(key: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    total = key * 0
    for first in range(0, source.count, SHAPE.tile):
        own, masses = load_tile(first, source, buffers, row, SHAPE)
        total += tl.sum(tl.where(own >= key, masses, 0), 0)
    return total


@triton.jit
def take_equals(
    needed: tl.tensor, key: tl.tensor, above: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor,
    SHAPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Of the values equal to `key`, in the order of their ids, as many as it takes to reach the mass `needed`, with
    `above` before the first: the mass reached, and the place of the last of them."""
    reached, running, place = above, above, row * 0
    for first in range(0, source.count, SHAPE.tile):
        own, masses = load_tile(first, source, buffers, row, SHAPE)
        masses = tl.where(own == key, masses, 0)
        before = running + tl.cumsum(masses, 0) - masses
        taken = (own == key) & (before < needed)
        reached += tl.sum(tl.where(taken, masses, 0), 0)
        place = tl.maximum(place, tl.max(tl.where(taken, first + tl.arange(0, SHAPE.tile), 0), 0))
        running += tl.sum(masses, 0)
    return reached, place


@triton.jit
def load_tile(
    first: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, SHAPE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Keys and masses [tile], both int64, from `first` on; NOTHING and 0 past the last."""
    places = first + tl.arange(0, SHAPE.tile)
    inside = places < source.count
    if source.listed:
        key = tl.load(buffers.candidates + row * SHAPE.room + places, mask=inside, other=0)
        mass = tl.load(buffers.candidate_masses + row * SHAPE.room + places, mask=inside, other=0)
    else:
        value = load_adjusted(buffers, row, places, SHAPE)
        key = order(value)
        _, mass = measure(value, source.top, buffers, row)
    return tl.where(inside, key.to(tl.int64), NOTHING), mass
