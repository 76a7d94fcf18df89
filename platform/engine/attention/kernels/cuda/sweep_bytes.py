"""Softmax over keys and values of 8 bits for the few rows of a decode (triton): each warp has 16 keys of every step,
its own largest score and its own sums, which are added up once, at the end.

Bytes go from memory to the matrix units without a number moving from thread to thread. A thread reads 16 neighbours,
and the matrix units want pairs of every fourth thread: the inputs of a product are put in the order in which threads
have them, in q as it is read, and so are the outputs of the second product, in the result as it is done.

    first product   input  (H, s, h, t, e) of [D / 64, 4, 2, 4, 2]  is number  64 H + 16 t + 4 s + 2 h + e of a head
    second product  output (j, g)          of [D / 8, 8]            is number  D / 8 g + j

Products are of float16, which holds every number of 8 bits: rows of q are divided by a power of two near their largest
number, and what values are multiplied by, weight times scale, by one near the largest of it so far.
"""

from typing import Final

import triton
import triton.language as tl

from loraplex.lora.kernels.cuda.matrix import multiply

from .keys import LEAST_FACTOR, LOG2_E, LOWEST, cap, find_slot, is_between, is_seen, load_block
from .stored import unpack_scales, widen_bytes

LEAST_POWER: Final = tl.constexpr(2.0**-40)
"""That q is divided by: scores of numbers below it change no weight."""
LEAST_UNIT: Final = tl.constexpr(2.0**-126)


@triton.jit
def sweep_bytes(
    query: tl.tensor, heads: tl.tensor, live: tl.tensor, query_position: tl.tensor, head: tl.tensor,
    start: tl.tensor, steps: tl.tensor, first_key: tl.tensor, last_key: tl.tensor, factor: tl.tensor,
    key: tl.tensor, value: tl.tensor, scales: tl.tensor, table: tl.tensor, soft_cap: tl.tensor,
    CAPPED: tl.constexpr, WINDOW: tl.constexpr, FORMAT: tl.constexpr, SCALED: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr, WIDE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """(largest score [ROWS], sum of weights [ROWS], weighted values [ROWS, PADDED]) of the keys in tiles `start` to
    `start + steps`. heads [ROWS]: rows of `query`. Blocks have a multiple of 16 keys."""
    WARPS: tl.constexpr = KEYS // 16
    HALVES: tl.constexpr = PADDED // 64
    RUN: tl.constexpr = PADDED // 8
    dtype: tl.constexpr = tl.float16 if query.dtype.element_ty.primitive_bitwidth == 16 else tl.float32
    q, power = read_query(query, heads, live, dtype, SIZE, PADDED)
    q = tl.broadcast_to(q[None, :, :], (WARPS, ROWS, PADDED))
    factor = tl.maximum(power * factor, LEAST_FACTOR)[None, :, None]

    # Rows of 64 bytes: the keys' by halves of a head and of the warp's keys, warp and key ...
    row, byte = tl.arange(0, 16 * HALVES * WARPS), tl.arange(0, 64)[None, :]
    part, key_warp = (row // (8 * WARPS))[:, None], (row // 8 % WARPS * 16)[:, None]
    key_number = part % 2 * 8 + row[:, None] % 8
    key_byte = part // 2 * 64 + byte
    # ... and the values' by keys of a thread, warp and eighth of a head.
    row, byte = tl.arange(0, 32 * WARPS), tl.arange(0, 4 * RUN)[None, :]
    part, value_warp = (row // (8 * WARPS))[:, None], (row // 8 % WARPS * 16)[:, None]
    value_number = part // 2 * 8 + byte // RUN * 2 + part % 2
    value_byte = row[:, None] % 8 * RUN + byte % RUN
    warp, number = tl.arange(0, WARPS) * 16, tl.arange(0, 16)[None, :]

    block = load_block(table, start * KEYS + warp, last_key, BLOCK)
    top = tl.full((WARPS, ROWS), LOWEST, tl.float32)
    total = tl.zeros((WARPS, ROWS), tl.float32)
    result = tl.zeros((WARPS, ROWS, PADDED), tl.float32)
    unit = tl.full((WARPS, ROWS), LEAST_UNIT, tl.float32)  # of result

    for step in tl.range(0, steps, num_stages=STAGES):
        first = (start + step) * KEYS
        slot = find_slot(block, first + warp, head, KV_HEADS, BLOCK, WIDE)
        known = is_between(first + key_warp + key_number, first_key, last_key, WINDOW) & (key_byte < SIZE)
        places = (spread(slot, 2 * HALVES) + key_number) * SIZE + key_byte
        k = tl.load(key + places, mask=known, other=0)
        known = is_between(first + value_warp + value_number, first_key, last_key, WINDOW) & (value_byte < SIZE)
        places = (spread(slot, 4) + value_number) * SIZE + value_byte
        v = tl.load(value + places, mask=known, other=0)
        position = (first + warp)[:, None] + number
        if SCALED:
            known = is_between(position, first_key, last_key, WINDOW)
            key_scale, value_scale = unpack_scales(tl.load(scales + slot[:, None] + number, mask=known, other=0))
        block = load_block(table, first + KEYS + warp, last_key, BLOCK)

        k = order_keys(widen_bytes(k, dtype, FORMAT), WARPS, HALVES)
        score = multiply(q, k, tl.zeros((WARPS, ROWS, 16), tl.float32))
        if SCALED:
            score *= key_scale[:, None, :]
        row_factor = factor
        if CAPPED:
            score = cap(score * factor, soft_cap)
            row_factor = LOG2_E
        seen = is_seen(query_position[None, :, None], position[:, None, :], WINDOW)
        score = tl.where(seen, score * row_factor, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 2))
        weight = tl.exp2(score - higher[:, :, None])
        less = tl.exp2(top - higher)
        total = total * less + tl.sum(weight, 2)
        top = higher
        if SCALED:
            weight *= value_scale[:, None, :]
            unit *= less
            larger = power_below(tl.maximum(unit, tl.max(weight, 2)))
            less = unit * invert_power(larger)
            weight *= invert_power(larger)[:, :, None]
            unit = larger
        v = order_values(widen_bytes(v, dtype, FORMAT), WARPS, RUN)
        result = multiply(weight.to(dtype), v, result * less[:, :, None])

    higher = tl.max(top, 0)
    less = tl.exp2(top - higher[None, :])
    total = tl.sum(total * less, 0)
    if SCALED:
        less *= unit
    result = tl.sum(result * less[:, :, None], 0)
    return higher, total, result.reshape(ROWS, RUN, 8).permute(0, 2, 1).reshape(ROWS, PADDED)


@triton.jit
def read_query(
    query: tl.tensor, heads: tl.tensor, live: tl.tensor, dtype: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """(rows of the first product, over powers of two, and those powers)"""
    c = tl.arange(0, PADDED)
    number = c // 64 * 64 + c // 2 % 4 * 16 + c // 16 % 4 * 4 + c // 8 % 2 * 2 + c % 2
    places = query + heads[:, None].to(tl.int64) * SIZE + number[None, :]
    q = tl.load(places, mask=live[:, None] & (number < SIZE)[None, :], other=0.0).to(tl.float32)
    power = power_below(tl.maximum(tl.max(tl.abs(q), 1), LEAST_POWER))
    return (q * invert_power(power)[:, None]).to(dtype), power


@triton.jit
def power_below(number: tl.tensor) -> tl.tensor:
    """The largest power of two up to a float32 that is not negative, 2^126 at most."""
    bits = number.to(tl.uint32, bitcast=True) & 0x7F800000
    return tl.minimum(bits, 0x7E800000).to(tl.float32, bitcast=True)


@triton.jit
def invert_power(power: tl.tensor) -> tl.tensor:
    """1 / power, exactly, of a power of two from 2^-126 to 2^126."""
    return (0x7F000000 - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def spread(slot: tl.tensor, PARTS: tl.constexpr) -> tl.tensor:
    """[warps] -> [PARTS * warps * 8, 1]: read by every thread, since so few numbers are no reason to exchange them."""
    WARPS: tl.constexpr = slot.shape[0]
    return tl.broadcast_to(slot[None, :, None], (PARTS, WARPS, 8)).reshape(PARTS * WARPS * 8)[:, None]


@triton.jit
def order_keys(k: tl.tensor, WARPS: tl.constexpr, HALVES: tl.constexpr) -> tl.tensor:
    """-> [warp, input of the first product, key]"""
    parts = k.reshape(HALVES, 2, WARPS, 8, 4, 4, 2, 2)
    return parts.permute(2, 0, 5, 6, 4, 7, 1, 3).reshape(WARPS, HALVES * 64, 16)


@triton.jit
def order_values(v: tl.tensor, WARPS: tl.constexpr, RUN: tl.constexpr) -> tl.tensor:
    """-> [warp, key, output of the second product]"""
    parts = v.reshape(2, 2, WARPS, 8, 4, RUN)
    return parts.permute(2, 0, 4, 1, 5, 3).reshape(WARPS, 16, RUN * 8)
