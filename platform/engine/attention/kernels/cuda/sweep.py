"""Softmax over the keys of a tile's rows, which all warps of a program share (triton). Shapes as in attend.py."""

import triton
import triton.language as tl

from loraplex.lora.kernels.cuda.matrix import multiply

from .keys import LOG2_E, LOWEST, cap, find_slot, is_between, is_seen, load_block
from .stored import FLOAT, unpack_scales, widen


@triton.jit
def sweep(
    q: tl.tensor, query_position: tl.tensor, head: tl.tensor, start: tl.tensor, steps: tl.tensor, whole: tl.tensor,
    first_key: tl.tensor, last_key: tl.tensor, factor: tl.tensor, key: tl.tensor, value: tl.tensor, scales: tl.tensor,
    table: tl.tensor, lanes: tl.tensor, inner: tl.tensor, soft_cap: tl.tensor,
    CAPPED: tl.constexpr, WINDOW: tl.constexpr, FORMAT: tl.constexpr, SCALED: tl.constexpr, KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr, WIDE: tl.constexpr,
    AHEAD: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """(largest score [rows], sum of weights [rows], weighted values [rows, padded D]) of the keys in tiles `start` to
    `start + steps`. All queries see all keys of the first `whole` steps, with AHEAD."""
    top = tl.full((q.shape[0],), LOWEST, tl.float32)
    total = tl.zeros((q.shape[0],), tl.float32)
    result = tl.zeros((q.shape[0], q.shape[1]), tl.float32)
    position = start * KEYS + tl.arange(0, KEYS)
    block = load_block(table, position, last_key, BLOCK)
    following, score = block, tl.zeros((q.shape[0], KEYS), tl.float32)
    if AHEAD:
        known = is_between(position, first_key, last_key, WINDOW)
        slot = find_slot(block, position, head, KV_HEADS, BLOCK, WIDE)
        k = tl.load(key + slot[None, :] * SIZE + lanes[:, None], mask=known[None, :] & inner[:, None], other=0)
        score = multiply(q, widen(k, q.dtype, FORMAT), score)
        following = load_block(table, position + KEYS, last_key, BLOCK)
        for step in tl.range(0, whole, num_stages=STAGES):  # from 0, else triton does not see that rows are contiguous
            top, total, result, score, block, following = take_keys(
                start + step, top, total, result, score, block, following, q, query_position, head, first_key, last_key,
                factor, key, value, scales, table, lanes, inner, soft_cap,
                CAPPED, WINDOW, FORMAT, SCALED, KV_HEADS, SIZE, BLOCK, KEYS, WIDE, AHEAD, False,
            )  # fmt: skip
    for step in tl.range(0, steps - whole, num_stages=STAGES):
        top, total, result, score, block, following = take_keys(
            start + whole + step, top, total, result, score, block, following, q, query_position, head, first_key,
            last_key, factor, key, value, scales, table, lanes, inner, soft_cap,
            CAPPED, WINDOW, FORMAT, SCALED, KV_HEADS, SIZE, BLOCK, KEYS, WIDE, AHEAD, True,
        )  # fmt: skip
    return top, total, result


@triton.jit
def take_keys(
    tile: tl.tensor, top: tl.tensor, total: tl.tensor, result: tl.tensor, score: tl.tensor, block: tl.tensor,
    following: tl.tensor, q: tl.tensor, query_position: tl.tensor, head: tl.tensor, first_key: tl.tensor,
    last_key: tl.tensor, factor: tl.tensor, key: tl.tensor, value: tl.tensor, scales: tl.tensor, table: tl.tensor,
    lanes: tl.tensor, inner: tl.tensor, soft_cap: tl.tensor,
    CAPPED: tl.constexpr, WINDOW: tl.constexpr, FORMAT: tl.constexpr, SCALED: tl.constexpr, KV_HEADS: tl.constexpr,
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
    if CAPPED:
        own = cap(own * factor, soft_cap)
        factor = LOG2_E
    if MASKED:
        seen = is_seen(query_position[:, None], position[None, :], WINDOW)
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
