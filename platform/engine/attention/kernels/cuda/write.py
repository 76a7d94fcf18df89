"""Norms of heads, rope and the write to the paged cache of one step's keys and values, with the queries (triton).

A row is a head, of which a program has two parts: what rope turns by the same angle is at the same place of both. Where
rope leaves numbers of a head alone, its first half has the first half of those behind the numbers that it turns."""

from typing import Final

import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.chain import let_next_begin, wait_for_previous

from .stored import FLOAT, encode, scale_above

NOT_FINITE: Final = tl.constexpr(-(1 << 40))
"""So low that no count of clipped numbers makes up for it."""
SQUARES: Final = tl.constexpr(512)
"""Numbers of a norm over all heads that are read at a time."""


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["clipped"])
def rotate_and_write(
    query: tl.tensor, heads: tl.tensor, key: tl.tensor, value: tl.tensor, scales: tl.tensor, static: tl.tensor,
    clipped: tl.tensor, positions: tl.tensor, slots: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    query_norm: tl.tensor, key_norm: tl.tensor, query_scale: tl.tensor, adapters: tl.tensor, floats: tl.tensor,
    vectors: tl.tensor, layer: tl.tensor,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, TURNED: tl.constexpr, PAIRS: tl.constexpr, NORMED: tl.constexpr, WHOLE: tl.constexpr,
    VALUE_NORM: tl.constexpr, SCALED: tl.constexpr, EPS: tl.constexpr, FORMAT: tl.constexpr, LARGEST: tl.constexpr,
    STATIC: tl.constexpr, OWN: tl.constexpr, TABLE_KINDS: tl.constexpr, QUERY_KIND: tl.constexpr,
    KEY_KIND: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (T, 1 + blocks of ROWS query heads): the first program of a token has its keys and values; without KV_HEADS
    (T, blocks). query [T, H, D]; heads [T, H + 2 G, D], of query, keys and values; key, value [N, G, BLOCK, D]; scales
    [N, G, BLOCK, 2] bfloat16; static [2, G]; clipped [T] int64; cos, sin [positions, TURNED / 2]. A token whose slot is
    negative is not written. LANES: half a head, padded to a power of two. PAIRS: rope turns neighbours. WHOLE: one norm
    over all query heads, query_norm [H, D], and one over all keys; else [D]. VALUE_NORM: one over each value. SCALED:
    query_scale [positions] multiplies queries. OWN: adapters [T], the slot of each token or -1, may bring weights of
    the norms, pages [layers, 2, size of the norm] of floats where vectors [slots, TABLE_KINDS] says. Where a layer's
    row of clipped begins depends on the number of tokens: one compiled kernel serves all."""
    token, program = tl.program_id(0), tl.program_id(1)
    if KV_HEADS == 0:
        program += 1
    let_next_begin(CHAINED)
    row, lanes = tl.arange(0, ROWS)[:, None], tl.arange(0, LANES)[None, :]
    HALF: tl.constexpr = SIZE // 2
    ANGLES: tl.constexpr = TURNED // 2
    inner = lanes < HALF
    if PAIRS:
        first_lane, second_lane = 2 * lanes, 2 * lanes + 1
    elif TURNED > 0 and TURNED < SIZE:
        first_lane = tl.where(lanes < ANGLES, lanes, lanes + ANGLES)
        second_lane = tl.where(lanes < ANGLES, lanes + ANGLES, lanes + HALF)
    else:
        first_lane, second_lane = lanes, lanes + HALF
    head = tl.where(program == 0, HEADS + row, (program - 1) * ROWS + row)
    live = head < tl.where(program == 0, HEADS + 2 * KV_HEADS, HEADS)
    inside = live & inner
    begin = heads + token.to(tl.int64) * (HEADS + 2 * KV_HEADS) * SIZE
    source = begin + head.to(tl.int64) * SIZE
    wait_for_previous(CHAINED)
    first = tl.load(source + first_lane, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + second_lane, mask=inside, other=0.0).to(tl.float32)
    turned = inside & (head < HEADS + KV_HEADS)
    if NORMED or VALUE_NORM:
        squares = tl.sum(first * first + second * second, 1)[:, None]
        factor = 1.0 / tl.sqrt_rn(squares / SIZE + EPS)
        if VALUE_NORM:
            is_value = inside & (head >= HEADS + KV_HEADS)
            first, second = tl.where(is_value, first * factor, first), tl.where(is_value, second * factor, second)
        if NORMED:
            norm = key_norm
            if program > 0:
                norm = query_norm
            if OWN:
                adapter = tl.load(adapters + token)
                kind = adapter * TABLE_KINDS + tl.where(program == 0, KEY_KIND, QUERY_KIND)
                page = tl.load(vectors + kind, mask=adapter >= 0, other=-1)
                heads_of_norm = tl.where(program == 0, KV_HEADS, HEADS) if WHOLE else 1
                if page >= 0:
                    norm = floats + page + layer * 2 * SIZE * heads_of_norm
            there = inner
            if WHOLE:
                there = turned
                norm += (head - tl.where(program == 0, HEADS, 0)) * SIZE
                if program == 0:
                    keys_squares = tl.where(head < HEADS + KV_HEADS, squares, 0.0)
                    mean = tl.sum(tl.sum(keys_squares, 1), 0) / max(1, KV_HEADS * SIZE)
                else:
                    mean = add_squares(begin, HEADS * SIZE) / max(1, HEADS * SIZE)
                factor = 1.0 / tl.sqrt_rn(mean + EPS)
            first_norm = tl.load(norm + first_lane, mask=there, other=0.0)
            second_norm = tl.load(norm + second_lane, mask=there, other=0.0)
            first = tl.where(turned, first * factor * first_norm, first)
            second = tl.where(turned, second * factor * second_norm, second)
    if TURNED:
        place = tl.load(positions + token) * ANGLES + lanes
        known = lanes < ANGLES
        cosine = tl.where(turned, tl.load(cos + place, mask=known, other=1.0), 1.0)
        sine = tl.where(turned, tl.load(sin + place, mask=known, other=0.0), 0.0)
        first, second = first * cosine - second * sine, second * cosine + first * sine
    if program > 0:
        if SCALED:
            scale_of_queries = tl.load(query_scale + tl.load(positions + token))
            first, second = first * scale_of_queries, second * scale_of_queries
        target = query + (token.to(tl.int64) * HEADS + head) * SIZE
        tl.store(target + first_lane, first.to(query.dtype.element_ty), mask=inside)
        tl.store(target + second_lane, second.to(query.dtype.element_ty), mask=inside)
        return

    slot = tl.load(slots + token)
    written = tl.where(live, slot, -1) >= 0
    is_value = head >= HEADS + KV_HEADS
    kv_head = head - HEADS - tl.where(is_value, KV_HEADS, 0)
    line = slot // BLOCK * KV_HEADS + kv_head
    if FORMAT == FLOAT:
        first_stored, second_stored = first.to(key.dtype.element_ty), second.to(key.dtype.element_ty)
    else:
        if STATIC:
            scale = tl.load(static + head - HEADS, mask=live, other=1.0)
            beyond = count_beyond(first, scale, LARGEST) + count_beyond(second, scale, LARGEST)
            number = tl.where(beyond < 0, NOT_FINITE, beyond.to(tl.int64))
            tl.store(clipped + token, tl.where(slot >= 0, number, 0))
        else:
            largest = tl.maximum(magnitude_bits(first), magnitude_bits(second))
            scale = scale_above(tl.max(largest, 1).to(tl.float32, bitcast=True), LARGEST)[:, None]
            places = scales + (line * BLOCK + slot % BLOCK) * 2 + is_value.to(tl.int64)
            tl.store(places, scale.to(tl.bfloat16), mask=written)
        divisor = tl.where(scale == 0.0, 1.0, scale)
        first_stored = encode(tl.clamp(tl.div_rn(first, divisor), -LARGEST, LARGEST), FORMAT)
        second_stored = encode(tl.clamp(tl.div_rn(second, divisor), -LARGEST, LARGEST), FORMAT)
    target = (line * BLOCK + slot % BLOCK) * SIZE
    keys, values = (head < HEADS + KV_HEADS) & inner & written, is_value & inner & written
    tl.store(key + target + first_lane, first_stored, mask=keys)
    tl.store(key + target + second_lane, second_stored, mask=keys)
    tl.store(value + target + first_lane, first_stored, mask=values)
    tl.store(value + target + second_lane, second_stored, mask=values)


@triton.jit
def add_squares(numbers: tl.tensor, COUNT: tl.constexpr) -> tl.tensor:
    """The sum of the squares of COUNT numbers, always in the same order."""
    total = tl.zeros((SQUARES,), tl.float32)
    for first in range(0, COUNT, SQUARES):
        place = first + tl.arange(0, SQUARES)
        number = tl.load(numbers + place, mask=place < COUNT, other=0.0).to(tl.float32)
        total += number * number
    return tl.sum(total, 0)


@triton.jit
def magnitude_bits(numbers: tl.tensor) -> tl.tensor:
    """int32 that are in order as the magnitudes are, NaN above all."""
    return numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def count_beyond(numbers: tl.tensor, scale: tl.tensor, LARGEST: tl.constexpr) -> tl.tensor:
    """How many numbers the scale clips; far below zero where one is not finite."""
    magnitudes = tl.abs(numbers)
    clipped = (tl.div_rn(magnitudes, scale) > LARGEST).to(tl.int32)
    broken = tl.where(magnitudes < float("inf"), 0, 1)
    return tl.where(tl.max(tl.max(broken, 1), 0) > 0, -(1 << 30), tl.sum(tl.sum(clipped, 1), 0))
