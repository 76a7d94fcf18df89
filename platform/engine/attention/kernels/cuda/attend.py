"""softmax(scale * Q K^T) V over paged keys and values, for prefill, decode and both at once (triton).

Shapes: T tokens, S sequences, H query heads, G KV heads, D head size, N blocks. A program has the query heads of one KV
head for a few tokens of one sequence as rows of one matrix, and reads that head's keys once for all of them, KEYS at a
time, each from the block that the table says. With splits, several programs share a tile's keys and leave partial
results that merge.py adds up. Decodes share the keys of all sequences out (places.py), so that one long context does
not outlast the others.

Keys and values of 8 bits are widened before each product; their scales multiply scores and weights, static ones all
scores and the result. Rows without any key give zeros.
"""

from typing import Final

import triton
import triton.language as tl

from loraplex.lora.kernels.matrix import multiply
from loraplex.quant.kernels.cuda.chain import let_next_begin, wait_for_previous

from .places import count_parts, find_part, find_sequence, see_keys, share_tiles, split_keys
from .stored import FLOAT, unpack_scales, widen

LOWEST: Final = tl.constexpr(-1e30)
"""Stands for no score yet; finite, so that differences stay numbers."""
LOG2_E: Final = tl.constexpr(1.4426950408889634)
LEAST_FACTOR: Final = tl.constexpr(1e-30)


@triton.jit(do_not_specialize=["sequences", "tokens", "width", "spare"])
def attend(
    output: tl.tensor, sums: tl.tensor, states: tl.tensor, query: tl.tensor,
    key: tl.tensor, value: tl.tensor, scales: tl.tensor, static: tl.tensor,
    blocks: tl.tensor, starts: tl.tensor, lengths: tl.tensor, sequences: tl.tensor, tokens: tl.tensor, width: tl.tensor,
    spare: tl.tensor,
    SCALE: tl.constexpr, SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, FORMAT: tl.constexpr, WORTH: tl.constexpr,
    SCALED: tl.constexpr, STATIC: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    SEARCHED: tl.constexpr, LEAST_SPLIT: tl.constexpr, WIDE: tl.constexpr, SHARED: tl.constexpr, CHAINED: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (tiles, G, splits), all static bounds; SHARED: (S + spare, G), of decodes whose keys are shared out. output,
    query [T, H, D]; sums [splits, T, H, D] and states [splits, T, H, 2] float32, with SHARED [S + spare, H, D] and
    [S + spare, H, 2], of tiles whose keys several programs have; key, value [N, G, BLOCK, D]; scales [N, G, BLOCK]
    uint32, a pair each; static [2, G]; blocks [S, width]; starts [S + 1]; lengths [S]. WORTH: what a stored number is
    multiplied by. SOFT_CAP and WINDOW: 0 for none. WIDE: places in the cache take 64 bits."""
    tile, head, split = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    let_next_begin(CHAINED)
    QUERIES: tl.constexpr = ROWS // GROUP
    if SHARED:
        most = share_tiles(lengths, sequences, spare, WINDOW, KEYS, SEARCHED, LEAST_SPLIT)
        sequence, before = find_part(lengths, sequences, tile, most, WINDOW, KEYS, SEARCHED)
        if sequence >= sequences:
            wait_for_previous(CHAINED)
            return
        split = tile - before
    else:
        sequence = find_sequence(starts, sequences, tile, QUERIES, SEARCHED)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    first = begin if SHARED else begin + (tile - begin // QUERIES - sequence) * QUERIES
    if first >= end:
        wait_for_previous(CHAINED)
        return
    last = min(first + QUERIES, end)
    offset = tl.load(lengths + sequence) - end
    first_key, last_key = see_keys(offset + first, offset + last - 1, WINDOW)
    splits = tl.num_programs(2)
    if SHARED:
        splits = count_parts((last_key + KEYS - 1) // KEYS - first_key // KEYS, most)
    first_tile, each, used = split_keys(first_key, last_key, splits, KEYS, LEAST_SPLIT)
    if split >= max(used, 1):
        wait_for_previous(CHAINED)
        return

    row, lanes = tl.arange(0, ROWS), tl.arange(0, PADDED)
    token = first + row // GROUP
    live = (token < last) & (row < QUERIES * GROUP)
    inner = (lanes < SIZE) | (SIZE == PADDED)
    heads = token * (KV_HEADS * GROUP) + head * GROUP + row % GROUP
    places = heads[:, None].to(tl.int64) * SIZE + lanes[None, :]
    wait_for_previous(CHAINED)
    q = tl.load(query + places, mask=live[:, None] & inner[None, :], other=0.0)
    factor: tl.constexpr = SCALE * WORTH * (1.0 if SOFT_CAP > 0 else LOG2_E)
    # Above 0, so that a score of minus infinity stays one.
    score_factor = tl.maximum(tl.load(static + head) * factor, LEAST_FACTOR) if STATIC else factor
    table = blocks + sequence.to(tl.int64) * width
    top = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, PADDED), tl.float32)

    start = first_tile + split * each
    steps = min((last_key + KEYS - 1) // KEYS - start, each)
    position = start * KEYS + tl.arange(0, KEYS)
    block = load_block(table, position, last_key, BLOCK)
    following, score = block, tl.zeros((ROWS, KEYS), tl.float32)
    whole = 0
    if AHEAD:
        known = is_between(position, first_key, last_key, WINDOW)
        slot = find_slot(block, position, head, KV_HEADS, BLOCK, WIDE)
        k = tl.load(key + slot[None, :] * SIZE + lanes[:, None], mask=known[None, :] & inner[:, None], other=0)
        score = multiply(q, widen(k, q.dtype, FORMAT), score)
        following = load_block(table, position + KEYS, last_key, BLOCK)
        # All queries see all keys of the first steps.
        whole = 0 if WINDOW else max(0, min(steps, (offset + first + 1) // KEYS - start))
        for step in tl.range(0, whole, num_stages=STAGES):  # from 0, else triton does not see that rows are contiguous
            top, total, result, score, block, following = take_keys(
                start + step, top, total, result, score, block, following, q, offset + token, head, first_key, last_key,
                score_factor, key, value, scales, table, lanes, inner,
                SOFT_CAP, WINDOW, FORMAT, SCALED, KV_HEADS, SIZE, BLOCK, KEYS, WIDE, AHEAD, False,
            )  # fmt: skip
    for step in tl.range(0, steps - whole, num_stages=STAGES):
        top, total, result, score, block, following = take_keys(
            start + whole + step, top, total, result, score, block, following, q, offset + token, head, first_key,
            last_key, score_factor, key, value, scales, table, lanes, inner,
            SOFT_CAP, WINDOW, FORMAT, SCALED, KV_HEADS, SIZE, BLOCK, KEYS, WIDE, AHEAD, True,
        )  # fmt: skip

    result *= (tl.load(static + KV_HEADS + head) if STATIC else 1.0) * WORTH
    inside = live[:, None] & inner[None, :]
    if used > 1:
        parts = ((tile - first) if SHARED else split * tokens).to(tl.int64) * (KV_HEADS * GROUP)
        tl.store(sums + parts * SIZE + places, result, mask=inside)
        tl.store(states + (parts + heads) * 2, top, mask=live)
        tl.store(states + (parts + heads) * 2 + 1, total, mask=live)
    else:
        result /= tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(output + places, result.to(output.dtype.element_ty), mask=inside)


@triton.jit
def take_keys(
    tile: tl.tensor, top: tl.tensor, total: tl.tensor, result: tl.tensor, score: tl.tensor, block: tl.tensor,
    following: tl.tensor, q: tl.tensor, query_position: tl.tensor, head: tl.tensor, first_key: tl.tensor,
    last_key: tl.tensor, factor: tl.tensor, key: tl.tensor, value: tl.tensor, scales: tl.tensor, table: tl.tensor,
    lanes: tl.tensor, inner: tl.tensor,
    SOFT_CAP: tl.constexpr, WINDOW: tl.constexpr, FORMAT: tl.constexpr, SCALED: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, WIDE: tl.constexpr, AHEAD: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """One step of the softmax over the keys of `tile`, all of which all queries see unless MASKED. block: the blocks of
    these keys, read a step ahead. AHEAD: `score` are products with these keys already, and those with the next keys,
    whose blocks are `following`, are computed beside the softmax of these."""
    position = tile * KEYS + tl.arange(0, KEYS)
    known = is_between(position, first_key, last_key, WINDOW)
    slot = find_slot(block, position, head, KV_HEADS, BLOCK, WIDE)
    key_slot, key_known = slot, known
    if AHEAD:
        key_slot = find_slot(following, position + KEYS, head, KV_HEADS, BLOCK, WIDE)
        key_known = is_between(position + KEYS, first_key, last_key, WINDOW)
    block = load_block(table, position + KEYS, last_key, BLOCK)
    if AHEAD:
        following = load_block(table, position + 2 * KEYS, last_key, BLOCK)
    k = tl.load(key + key_slot[None, :] * SIZE + lanes[:, None], mask=key_known[None, :] & inner[:, None], other=0)
    there = known[:, None] & inner[None, :] if MASKED else inner[None, :]
    v = tl.load(value + slot[:, None] * SIZE + lanes[None, :], mask=there, other=0)
    product = multiply(q, widen(k, q.dtype, FORMAT), tl.zeros_like(score))
    own = score if AHEAD else product
    if SCALED:
        key_scale, value_scale = unpack_scales(tl.load(scales + slot, mask=known, other=0))
        own *= key_scale[None, :]
    if SOFT_CAP > 0:
        own = cap(own * factor, SOFT_CAP)
        factor = LOG2_E
    if MASKED:
        distance = query_position[:, None] - position[None, :]
        seen = (distance >= 0) & (distance < WINDOW) if WINDOW else distance >= 0
        own = tl.where(seen, own, float("-inf"))
    higher = tl.maximum(top, tl.max(own, 1) * factor)
    weight = tl.exp2(own * factor - higher[:, None])
    less = tl.exp2(top - higher)
    total = total * less + tl.sum(weight, 1)
    if SCALED:
        weight *= value_scale[None, :]
    narrow: tl.constexpr = FORMAT != FLOAT and q.dtype.primitive_bitwidth == 16
    weight_dtype: tl.constexpr = tl.bfloat16 if narrow else q.dtype
    result = multiply(weight.to(weight_dtype), widen(v, weight_dtype, FORMAT), result * less[:, None])
    return higher, total, result, product if AHEAD else score, block, following


@triton.jit
def is_between(position: tl.tensor, first: tl.tensor, end: tl.tensor, WINDOW: tl.constexpr) -> tl.tensor:
    """Without a window the first key is that of position 0."""
    return (position >= first) & (position < end) if WINDOW else position < end


@triton.jit
def load_block(table: tl.tensor, position: tl.tensor, end: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The block of each position below `end`."""
    return tl.load(table + position.to(tl.uint32) // BLOCK, mask=position < end, other=0)


@triton.jit
def find_slot(
    block: tl.tensor, position: tl.tensor, head: tl.tensor, KV_HEADS: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where a head's key or value of each position lies, in rows of the cache."""
    line = (block.to(tl.int64) if WIDE else block) * KV_HEADS + head
    return line * BLOCK + (position.to(tl.uint32) % BLOCK).to(tl.int32)


@triton.jit
def cap(score: tl.tensor, SOFT_CAP: tl.constexpr) -> tl.tensor:
    """SOFT_CAP * tanh(score / SOFT_CAP)"""
    return SOFT_CAP - 2.0 * SOFT_CAP / (1.0 + tl.exp2(score * (2.0 * LOG2_E / SOFT_CAP)))
