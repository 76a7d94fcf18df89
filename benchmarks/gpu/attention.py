"""Attention over the paged cache: decodes beside the memory's speed, a prefill beside the card's product, and what a
longer context costs in 8 bits beside 16."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F

from loraplex.engine.attention.layer import LayerAttention
from loraplex.engine.batch import Batch

from .card import copy_rate, product_rate
from .clock import Call
from .figure import Figure, Stage, seconds_of
from .paged import BLOCK, calls, checked_query, fill, fill_anew, step, token_bytes
from .size import Size

SHORTER: Final = 4
"""Parts of a sequence, of which the first is a short context and the others are what one long context is made of."""


def figures(size: Size) -> list[Figure]:
    (sequences, length), (growing, lengths) = size.decode, size.growing
    return [
        Figure(
            f"attention: decode of {sequences} x {length} tokens: bytes of the cache a second / copy",
            "x", 0.80, partial(share_of_copy, sequences, length),
        ),
        Figure(
            f"attention: decode of 1 x {size.long} and {sequences - 1} x {length // SHORTER} tokens: "
            "time, keys shared out / not",
            "x", 0.60, uneven_ratio, at_least=False,
        ),
        Figure(
            f"attention: decode of 1 x {size.long} tokens: bytes of the cache a second / copy",
            "x", 0.65, partial(share_of_copy, 1, size.long),
        ),
        Figure(
            f"attention: prefill of {size.prefill} tokens: operations a second / bfloat16 product",
            "x", 0.60, prefill_share,
        ),
        Figure(
            f"attention: prefill of {size.prefill} tokens: time / torch's attention of keys without pages",
            "x", None, beside_torch, at_least=False,
        ),
        Figure(
            f"attention: decode of {growing} x {lengths[0]} to {lengths[-1]} tokens: slope of time, float8 / bfloat16",
            "x", 0.57, slope_ratio, at_least=False,
        ),
    ]  # fmt: skip


def attention_of(size: Size) -> LayerAttention:
    return LayerAttention(
        num_heads=size.heads, num_kv_heads=size.kv_heads, head_dim=size.head_dim, scale=size.head_dim**-0.5
    )


def share_of_copy(sequences: int, length: int, stage: Stage) -> float:
    attention, dtype = attention_of(stage.size), stage.size.dtype
    filled = fill(stage, attention, sequences, length, dtype)
    query = checked_query(stage, filled, filled.decode)
    taken = seconds_of(stage, calls(filled, query, filled.decode))
    return token_bytes(attention, dtype) * sequences * length / taken / copy_rate(stage)


def uneven_ratio(stage: Stage) -> float:
    """Of one long context among many short ones."""
    (sequences, length), dtype = stage.size.decode, stage.size.dtype
    filled = fill(stage, attention_of(stage.size), sequences, length, dtype)
    sides: dict[str, Sequence[Call]] = {}
    for name, uneven in (("shared out", True), ("whole", False)):
        batch = replace(one_long(filled.decode, length, stage.size.long), uneven=uneven)
        sides[name] = calls(filled, checked_query(stage, filled._replace(decode=batch), batch), batch)
    taken = stage.clock.seconds(sides)
    return taken["shared out"] / taken["whole"]


def one_long(decode: Batch, length: int, longest: int) -> Batch:
    """The first sequence has up to `longest` tokens that lie behind the short contexts of sequences of `length`."""
    short, table = length // SHORTER, decode.block_tables
    blocks = -(-short // BLOCK)
    long = table[:, blocks : length // BLOCK].flatten()[: longest // BLOCK]
    tables = F.pad(table[:, :blocks], (0, len(long) - blocks))
    tables[0] = long
    lengths = torch.full_like(decode.context_lengths, short)
    lengths[0] = len(long) * BLOCK
    return replace(decode, block_tables=tables, context_lengths=lengths)


def prefill_share(stage: Stage) -> float:
    """Operations that a causal mask leaves: two products of half the square."""
    size, attention = stage.size, attention_of(stage.size)
    filled = fill(stage, attention, 1, size.prefill, size.dtype)
    batch = step(stage, filled.decode.block_tables, size.prefill, size.prefill)
    query = checked_query(stage, filled, batch)
    taken = seconds_of(stage, calls(filled, query, batch)[:1])
    return operations(attention, size.prefill) / taken / product_rate(stage)


def beside_torch(stage: Stage) -> float:
    """Of a prompt that has no token in the cache yet."""
    size, attention = stage.size, attention_of(stage.size)
    filled = fill(stage, attention, 1, size.prefill, size.dtype)
    batch = step(stage, filled.decode.block_tables, size.prefill, size.prefill)
    query = checked_query(stage, filled, batch)
    q, k, v = [
        stage.random(size.prefill, count, size.head_dim).transpose(0, 1)[None]
        for count in (size.heads, size.kv_heads, size.kv_heads)
    ]
    whole = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=True)
    taken = stage.clock.seconds({"ours": calls(filled, query, batch)[:1], "torch": [whole]})
    return taken["ours"] / taken["torch"]


def operations(attention: LayerAttention, tokens: int) -> int:
    """Of a causal prefill."""
    return 2 * attention.num_heads * attention.head_dim * tokens**2


def slope_ratio(stage: Stage) -> float:
    sequences, lengths = stage.size.growing
    dtypes = {"float8": torch.float8_e4m3fn, "wide": stage.size.dtype}
    sides: dict[str, Sequence[Call]] = {}
    for name, dtype in dtypes.items():
        filled = fill_anew(stage, attention_of(stage.size), sequences, lengths[-1], dtype)
        query = checked_query(stage, filled, filled.decode)
        for length in lengths:
            batch = step(stage, filled.decode.block_tables, 1, length)
            sides[f"{name} {length}"] = calls(filled, query, batch)
    taken = stage.clock.seconds(sides)
    float8, wide = (slope(lengths, [taken[f"{name} {length}"] for length in lengths]) for name in dtypes)
    return float8 / wide


def slope(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """Of the straight line with the least squares."""
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (lengths, seconds))
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())
