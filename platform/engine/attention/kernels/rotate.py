"""Norms of heads and rope, a token at a time.

Shapes: T tokens, H query heads, G KV heads, D head size (a multiple of 16), R numbers of a head that rope turns.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from ...kernels.vector import Array, load, multiply, multiply_add, splat, store, total
from .paged import TILE


class Heads(NamedTuple):
    """What becomes of heads, as Rotary of backend.py has it. What has no elements is not there."""

    cos: Any
    """[positions, R / 2] float32, R / 2 a multiple of 16 unless interleaved; [1, 0]: no rope"""
    sin: Any
    """As cos"""
    query_norm: Any
    """[D] or [H * D] float32"""
    key_norm: Any
    """[D] or [G * D] float32"""
    eps: Any
    query_scale: Any
    """[positions] float32"""
    interleaved: Any
    value_norm: Any


@njit(cache=True, nogil=True)
def rotate(queries: Array, positions: Array, heads: Heads, query: Array) -> None:
    """queries [T, H D] -> query [T, H, D], of a layer that writes no keys."""
    for token in range(len(positions)):
        rotate_queries(queries, token, positions[token], heads, query)


@njit(cache=True, nogil=True, parallel=True)
def rotate_parallel(queries: Array, positions: Array, heads: Heads, query: Array, workers: int) -> None:
    for worker in prange(workers):
        first, last = len(positions) * worker // workers, len(positions) * (worker + 1) // workers
        rotate(queries[first:last], positions[first:last], heads, query[first:last])


@njit(inline="always")
def rotate_queries(qkv: Array, token: int, position: int, heads: Heads, query: Array) -> None:
    query_heads, size = query.shape[1:]
    start = token * qkv.shape[1]
    norm, first = heads.query_norm, token * query_heads * size
    if turns_halves(norm, heads, size):
        for at in range(0, query_heads * size, size):
            turn_halves(qkv, start + at, norm, heads.cos, heads.sin, heads.eps, position, query, first + at)
    else:
        factor = whole_factor(qkv, start, query_heads * size, size, norm, heads.eps)
        for head in range(query_heads):
            rotate_head(qkv, start, head, size, norm, factor, heads, position, query, first + head * size)
    if heads.query_scale.size:
        scale_head(query, first, query_heads * size, heads.query_scale[position], query, first)


@njit(inline="always")
def turns_halves(norm: Array, heads: Heads, size: int) -> bool:
    """Whether `turn_halves` does all of it."""
    return not heads.interleaved and 2 * heads.cos.shape[1] == size and norm.size <= size


@njit(cache=True, nogil=True)
def turn_halves(
    source: Array, at: int, norm: Array, cosines: Array, sines: Array, eps: float, position: int, target: Array, to: int
) -> None:
    """The two halves of one head turned by the position's angles, after its norm where it has one."""
    half = cosines.shape[1]
    factor = splat(np.float32(1))
    if norm.size:
        factor = splat(inverse_rms(source, at, 2 * half, eps))
    for d in range(0, half, TILE):
        first, second = multiply(load(source, at + d), factor), multiply(load(source, at + half + d), factor)
        if norm.size:
            first, second = multiply(first, load(norm, d)), multiply(second, load(norm, half + d))
        cos, sin = load(cosines, position * half + d), load(sines, position * half + d)
        minus = multiply(sin, splat(np.float32(-1)))
        store(target, to + d, multiply_add(first, cos, multiply(second, minus)))
        store(target, to + half + d, multiply_add(second, cos, multiply(first, sin)))


@njit(cache=True, nogil=True)
def whole_factor(source: Array, start: int, count: int, size: int, norm: Array, eps: float) -> np.float32:
    """That of a norm over all `count` numbers from `start`; 0 where each head has its own, or none."""
    return inverse_rms(source, start, count, eps) if norm.size > size else np.float32(0)


@njit(cache=True, nogil=True)
def rotate_head(
    source: Array, start: int, head: int, size: int, norm: Array, whole: np.float32, heads: Heads, position: int,
    target: Array, to: int,
) -> None:  # fmt: skip
    """One head turned in any way, after its norm where it has one; `whole` of `whole_factor`."""
    half, at = heads.cos.shape[1], start + head * size
    weight = head * size if norm.size > size else 0
    single = np.float32(1)
    if norm.size:
        single = whole if norm.size > size else inverse_rms(source, at, size, heads.eps)
    factor = splat(single)
    begin = 0
    if not heads.interleaved:
        for d in range(0, half, TILE):
            first, second = multiply(load(source, at + d), factor), multiply(load(source, at + half + d), factor)
            if norm.size:
                first = multiply(first, load(norm, weight + d))
                second = multiply(second, load(norm, weight + half + d))
            cos, sin = load(heads.cos, position * half + d), load(heads.sin, position * half + d)
            minus = multiply(sin, splat(np.float32(-1)))
            store(target, to + d, multiply_add(first, cos, multiply(second, minus)))
            store(target, to + half + d, multiply_add(second, cos, multiply(first, sin)))
        begin = 2 * half
    for d in range(begin, size, TILE):
        rest = multiply(load(source, at + d), factor)
        store(target, to + d, multiply(rest, load(norm, weight + d)) if norm.size else rest)
    if heads.interleaved:
        _turn_pairs(target, to, heads, position)


@njit(cache=True, nogil=True)
def _turn_pairs(target: Array, to: int, heads: Heads, position: int) -> None:
    """In place."""
    numbers = target.reshape(target.size)
    for pair in range(heads.cos.shape[1]):
        cos, sin = heads.cos[position, pair], heads.sin[position, pair]
        first, second = numbers[to + 2 * pair], numbers[to + 2 * pair + 1]
        numbers[to + 2 * pair] = first * cos - second * sin
        numbers[to + 2 * pair + 1] = second * cos + first * sin


@njit(cache=True, nogil=True)
def scale_head(source: Array, at: int, size: int, factor: np.float32, target: Array, to: int) -> None:
    for d in range(0, size, TILE):
        store(target, to + d, multiply(load(source, at + d), splat(factor)))


@njit(cache=True, nogil=True, error_model="numpy")
def inverse_rms(source: Array, at: int, size: int, eps: float) -> np.float32:
    squares = splat(np.float32(0))
    for d in range(at, at + size, TILE):
        values = load(source, d)
        squares = multiply_add(values, values, squares)
    return np.float32(1) / np.float32(math.sqrt(total(squares) / np.float32(size) + eps))
