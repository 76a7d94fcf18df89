"""Where a row's most likely tokens reach a count or a mass: a search for a value, 8 guesses at a time (triton).

No sort: equal values are one step of the search, told apart by their ids where a token must be named. Values are looked
at as keys, the integers of `order`, and only those within the span where the end is known to be.
"""

from typing import Final, NamedTuple

import triton
import triton.language as tl

from .adjust import load_adjusted, measure
from .buckets import bucket_of
from .layout import Buffers
from .narrow import span_number, within_span
from .numbers import order, unorder

GUESSES: Final = tl.constexpr(8)
FAR: Final = tl.constexpr(1 << 40)
"""Above every key; -FAR is below."""


class Source(NamedTuple):
    """Where values are: in the list of candidates or in the row itself."""

    count: tl.tensor
    listed: tl.tensor
    top: tl.tensor
    """The largest of them."""


@triton.jit
def search(
    needed: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, BY_COUNT: tl.constexpr,
    SHAPE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The largest key from which on there is as much as `needed`, as there is to the end of the span; and how much is
    above that key."""
    start = span_number(buffers, row, WHICH, 3 if BY_COUNT else 2)
    low, high = ends(source, buffers, row, WHICH, SHAPE)
    above = start
    lanes = tl.arange(0, GUESSES)
    while low < high:
        step = (high - low + GUESSES - 1) // GUESSES
        keys = low + (lanes + 1) * step
        amounts = start + amounts_from(keys, source, buffers, row, WHICH, BY_COUNT, SHAPE)
        reached = tl.sum((amounts >= needed).to(tl.int32), 0)
        low += reached * step
        if low + step - 1 < high:
            high = low + step - 1
            above = tl.sum(tl.where(lanes == reached, amounts, 0), 0)
    return low, above


@triton.jit
def ends(
    source: Source, buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, SHAPE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """The least and the greatest key of a span."""
    low, high = tl.full((), FAR, tl.int64), tl.full((), -FAR, tl.int64)
    for first in range(0, source.count, SHAPE.tile):
        own, _, _ = load_tile(first, source, buffers, row, WHICH, SHAPE)
        low = tl.minimum(low, tl.min(tl.where(own > -FAR, own, FAR), 0))
        high = tl.maximum(high, tl.max(own, 0))
    return low, high


@triton.jit
def amounts_from(
    keys: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, BY_COUNT: tl.constexpr,
    SHAPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Count or mass of a span's values that are at least each of `keys` [GUESSES], as int64."""
    totals = tl.zeros((GUESSES,), tl.int64)
    for first in range(0, source.count, SHAPE.tile):
        own, masses, _ = load_tile(first, source, buffers, row, WHICH, SHAPE)
        if BY_COUNT:
            masses = tl.full((SHAPE.tile,), 1, tl.int64)
        totals += tl.sum(tl.where(own[None, :] >= keys[:, None], masses[None, :], 0), 1)
    return totals


@triton.jit
def mass_from(
    key: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, SHAPE: tl.constexpr
) -> tl.tensor:
    total = span_number(buffers, row, WHICH, 2)
    for first in range(0, source.count, SHAPE.tile):
        own, masses, _ = load_tile(first, source, buffers, row, WHICH, SHAPE)
        total += tl.sum(tl.where(own >= key, masses, 0), 0)
    return total


@triton.jit
def mass_of(key: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor) -> tl.tensor:
    """Of one token: all that have the value have the same."""
    _, mass = measure(unorder(key.to(tl.int32)), source.top, buffers, row)
    return mass


@triton.jit
def nth_of_equals(
    nth: tl.tensor, key: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr,
    SHAPE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The id of the nth, from 1 on, in the order of ids, of the tokens with this key: int32."""
    low, high = tl.full((), 0x7FFFFFFF, tl.int32), tl.full((), 0, tl.int32)
    for first in range(0, source.count, SHAPE.tile):
        own, _, ids = load_tile(first, source, buffers, row, WHICH, SHAPE)
        low = tl.minimum(low, tl.min(tl.where(own == key, ids, 0x7FFFFFFF), 0))
        high = tl.maximum(high, tl.max(tl.where(own == key, ids, 0), 0))
    lanes = tl.arange(0, GUESSES)
    while low < high:
        step = (high - low) // GUESSES + 1
        lasts = low + (lanes + 1) * step - 1
        counts = tl.zeros((GUESSES,), tl.int32)
        for first in range(0, source.count, SHAPE.tile):
            own, _, ids = load_tile(first, source, buffers, row, WHICH, SHAPE)
            counts += tl.sum(((own == key)[None, :] & (ids[None, :] <= lasts[:, None])).to(tl.int32), 1)
        low += tl.sum((counts < nth).to(tl.int32), 0) * step
        high = tl.minimum(high, low + step - 1)
    return low


@triton.jit
def load_tile(
    first: tl.tensor, source: Source, buffers: Buffers, row: tl.tensor, WHICH: tl.constexpr, SHAPE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Keys and masses [tile], both int64, and ids, from `first` on; -FAR and 0 outside the span."""
    places = first + tl.arange(0, SHAPE.tile)
    inside = places < source.count
    ids = places
    if source.listed:
        key = tl.load(buffers.candidates + row * SHAPE.room + places, mask=inside, other=0)
        ids = tl.load(buffers.candidate_ids + row * SHAPE.room + places, mask=inside, other=0)
    else:
        key = order(load_adjusted(buffers, row, places, SHAPE))
    distance, mass = measure(unorder(key), source.top, buffers, row)
    bucket = bucket_of(distance, tl.load(buffers.scales + row), SHAPE)
    inside = inside & within_span(bucket, buffers, row, WHICH)
    return tl.where(inside, key.to(tl.int64), -FAR), tl.where(inside, mass, 0), ids
