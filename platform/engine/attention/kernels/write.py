"""Write keys and values into the tiles of the cache, after norms of heads and rope.

Shapes: T tokens, H query heads, G KV heads, D head size, the cache of paged.py. With 8 bits every key and every value
gets the scale of its own largest number, or the static one of its head; beyond that it saturates, and `clipped` [T]
int64 has how many of a token's numbers did. It is negative where one of them is no finite number, and has no elements
without static scales.
"""

from typing import Final

import numpy as np
from numba import njit, prange

from ...kernels.vector import (
    Array,
    Shape,
    beyond,
    divide,
    farther,
    farthest,
    limit,
    load,
    scatter,
    splat,
    store,
)
from .paged import KEY, TILE, VALUE, Cache
from .rotate import (
    Heads,
    inverse_rms,
    rotate_head,
    rotate_queries,
    scale_head,
    turn_halves,
    turns_halves,
    whole_factor,
)

SERIAL_TOKENS: Final = 16
"""Below this, waking the other threads costs more than they save."""
NOT_FINITE: Final = -(1 << 40)
"""So low that no count of clipped numbers makes up for it."""


@njit(cache=True, nogil=True)
def write(key: Array, value: Array, slots: Array, cache: Cache, clipped: Array) -> None:
    """key and value [T, G, D] -> the cache at slots [T]."""
    heads, size = key.shape[1:]
    for token in range(len(slots)):
        count = 0
        for head in range(heads):
            source = (token * heads + head) * size
            count += _write_key(key, source, cache, slots[token], head)
            count += _write_value(value, source, cache, slots[token], head)
        _note(clipped, token, count)


@njit(cache=True, nogil=True)
def rotate_and_write(
    qkv: Array, positions: Array, slots: Array, heads: Heads, cache: Cache, clipped: Array, query: Array
) -> None:
    """qkv [T, (H + 2 G) D] -> query [T, H, D]; key and value to the cache."""
    buffer = np.empty(query.shape[2], np.float32)
    for token in range(len(slots)):
        _note(clipped, token, _token(qkv, token, positions[token], slots[token], heads, cache, query, buffer))


@njit(cache=True, nogil=True, parallel=True)
def rotate_and_write_parallel(
    qkv: Array, positions: Array, slots: Array, heads: Heads, cache: Cache, clipped: Array, query: Array, workers: int
) -> None:
    for worker in prange(workers):
        first, last = len(slots) * worker // workers, len(slots) * (worker + 1) // workers
        rotate_and_write(
            qkv[first:last], positions[first:last], slots[first:last], heads, cache, clipped[first:last],
            query[first:last],
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _token(
    qkv: Array, token: int, position: int, slot: int, heads: Heads, cache: Cache, query: Array, buffer: Array
) -> int:
    rotate_queries(qkv, token, position, heads, query)
    query_heads, size = query.shape[1:]
    kv_heads = cache.key.shape[1]
    start = token * qkv.shape[1] + query_heads * size
    norm, is_simple = heads.key_norm, turns_halves(heads.key_norm, heads, size)
    factor = np.float32(0) if is_simple else whole_factor(qkv, start, kv_heads * size, size, norm, heads.eps)
    count = 0
    for head in range(kv_heads):
        if is_simple:
            turn_halves(qkv, start + head * size, norm, heads.cos, heads.sin, heads.eps, position, buffer, 0)
        else:
            rotate_head(qkv, start, head, size, norm, factor, heads, position, buffer, 0)
        count += _write_key(buffer, 0, cache, slot, head)
        value = start + (kv_heads + head) * size
        if heads.value_norm:
            scale_head(qkv, value, size, inverse_rms(qkv, value, size, heads.eps), buffer, 0)
            count += _write_value(buffer, 0, cache, slot, head)
        else:
            count += _write_value(qkv, value, cache, slot, head)
    return count


@njit(inline="always")
def _note(clipped: Array, token: int, count: int) -> None:
    if clipped.size:
        clipped[token] = count


@njit(cache=True, nogil=True)
def _write_key(source: Array, at: int, cache: Cache, slot: int, head: int) -> int:
    """How many numbers were clipped; `_write_value` alike."""
    size = cache.key.shape[3]
    tile = _tile(cache.key.shape, slot, head)
    target = tile * size * TILE + slot % TILE
    if not _has_eight_bits(cache):
        for d in range(0, size, TILE):
            scatter(cache.key, target + d * TILE, TILE, load(source, at + d))
        return 0
    scale, clipped = _scale(source, at, size, cache, head, KEY, (tile * 2 + KEY) * TILE + slot % TILE)
    for d in range(0, size, TILE):
        scatter(cache.key, target + d * TILE, TILE, divide(load(source, at + d), splat(scale)))
    return int(clipped)


@njit(cache=True, nogil=True)
def _write_value(source: Array, at: int, cache: Cache, slot: int, head: int) -> int:
    size = cache.key.shape[3]
    tile = _tile(cache.key.shape, slot, head)
    target = (tile * TILE + slot % TILE) * size
    if not _has_eight_bits(cache):
        for d in range(0, size, TILE):
            store(cache.value, target + d, load(source, at + d))
        return 0
    scale, clipped = _scale(source, at, size, cache, head, VALUE, (tile * 2 + VALUE) * TILE + slot % TILE)
    for d in range(0, size, TILE):
        store(cache.value, target + d, divide(load(source, at + d), splat(scale)))
    return int(clipped)


@njit(inline="always")
def _has_eight_bits(cache: Cache) -> bool:
    """Known when compiling."""
    return bool(limit(cache.key) < np.inf)


@njit(inline="always")
def _tile(shape: Shape, slot: int, head: int) -> int:
    """Where a slot's tile is among those of all blocks and heads; `shape` is that of the keys."""
    heads, tiles = shape[1], shape[2]
    return (slot // (tiles * TILE) * heads + head) * tiles + slot % (tiles * TILE) // TILE


@njit(inline="always")
def _scale(
    source: Array, at: int, size: int, cache: Cache, head: int, part: int, target: int
) -> tuple[np.float32, int]:
    """What to divide the numbers of a key or value by (`part`), and how many of them are too large all the same."""
    if cache.scales.size:
        return _choose_scale(source, at, size, cache, target), 0
    scale = cache.static[part, head]
    return scale, _count_clipped(source, at, size, scale, limit(cache.key))


@njit(cache=True, nogil=True)
def _choose_scale(source: Array, at: int, size: int, cache: Cache, target: int) -> np.float32:
    """Store the scale with which a head just fits, and answer what to divide by. NaN if the head has NaN."""
    bits = _bfloat16_above(_largest(source, at, size) / limit(cache.key))
    cache.scales.reshape(cache.scales.size)[target] = bits
    return np.uint32(bits << 16).view(np.float32) if bits else np.float32(1)


@njit(cache=True, nogil=True)
def _count_clipped(source: Array, at: int, size: int, scale: np.float32, bound: np.float32) -> int:
    largest = _largest(source, at, size)
    if largest / scale <= bound:
        return 0
    if not np.isfinite(largest):
        return NOT_FINITE
    count = 0
    for d in range(at, at + size, TILE):
        count += beyond(divide(load(source, d), splat(scale)), bound)
    return count


@njit(inline="always")
def _largest(source: Array, at: int, size: int) -> np.float32:
    """Of the magnitudes of a head's numbers; NaN if one is."""
    top = splat(np.float32(0))
    for d in range(at, at + size, TILE):
        top = farther(top, load(source, d))
    return np.float32(farthest(top))


@njit(inline="always")
def _bfloat16_above(value: np.float32) -> np.uint32:
    """Bits of the least bfloat16 that is not below, so that nothing saturates."""
    if np.isnan(value):
        return np.uint32(0x7FC0)
    return (np.float32(value).view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)
