"""Attention as other families have it: soft caps, sinks, large heads, rope that turns a part of them; over 16 bits and
8."""

from functools import partial
from typing import Final

import torch

from loraplex.engine.attention.backend import Rotary
from loraplex.engine.attention.layer import LayerAttention
from loraplex.engine.batch import Batch

from .attention import operations
from .card import copy_rate, product_rate
from .figure import TOLERANCE, Figure, Stage, require_close, require_same, seconds_of
from .paged import STORED_TOLERANCE, Filled, calls, checked_query, fill, read, step, token_bytes
from .shapes import TURNED
from .size import Size

FLOAT8: Final = torch.float8_e4m3fn
DECODE_GOALS: Final = {"bfloat16": 0.80, "float8": 0.70}
"""As Llama's decode; in 8 bits as its slope of 0.57, of which half the bytes would be 0.5."""
PREFILL_GOALS: Final = {"bfloat16": 0.60, "float8": None}
EPS: Final = 1e-6
THETA: Final = 1e6


def figures(size: Size) -> list[Figure]:
    (sequences, length), found = size.decode, []
    for name, attention in size.kinds:
        for stored, dtype in _dtypes(size).items():
            what = f"attention, {name}, {stored} cache"
            decode = f"{what}: decode of {sequences} x {length} tokens: bytes of the cache a second / copy"
            prefill = f"{what}: prefill of {size.prefill} tokens: operations a second / bfloat16 product"
            found += [
                Figure(decode, "x", DECODE_GOALS[stored], partial(decode_share, attention, dtype)),
                Figure(prefill, "x", PREFILL_GOALS[stored], partial(prefill_share, attention, dtype)),
            ]
    turned = next(attention for _, attention in size.kinds if not (attention.soft_cap or attention.sinks))
    for tokens, measure in ((f"{sequences} decodes", decode_write_share), (f"{size.prefill} tokens", write_share)):
        for stored, dtype in _dtypes(size).items():
            what = f"norm, rope of a quarter of {turned.num_heads} heads of {turned.head_dim} and the write, {tokens}"
            named = f"{what}, {stored} cache: bytes a second / copy"
            found.append(Figure(named, "x", None, partial(measure, turned, dtype)))
    return found


def _dtypes(size: Size) -> dict[str, torch.dtype]:
    return {"bfloat16": size.dtype, "float8": FLOAT8}


def decode_share(attention: LayerAttention, dtype: torch.dtype, stage: Stage) -> float:
    sequences, length = stage.size.decode
    filled = fill(stage, attention, sequences, length, dtype)
    query = checked_query(stage, filled, filled.decode)
    taken = seconds_of(stage, calls(filled, query, filled.decode))
    return token_bytes(attention, dtype) * sequences * length / taken / copy_rate(stage)


def prefill_share(attention: LayerAttention, dtype: torch.dtype, stage: Stage) -> float:
    filled, batch = _prefill(stage, attention, dtype)
    query = checked_query(stage, filled, batch)
    taken = seconds_of(stage, calls(filled, query, batch)[:1])
    return operations(attention, stage.size.prefill) / taken / product_rate(stage)


def _prefill(stage: Stage, attention: LayerAttention, dtype: torch.dtype) -> tuple[Filled, Batch]:
    tokens = stage.size.prefill
    filled = fill(stage, attention, 1, tokens, dtype)
    return filled, step(stage, filled.decode.block_tables, tokens, tokens)


def write_share(attention: LayerAttention, dtype: torch.dtype, stage: Stage) -> float:
    return _share(stage, *_prefill(stage, attention, dtype), dtype)


def decode_write_share(attention: LayerAttention, dtype: torch.dtype, stage: Stage) -> float:
    filled = fill(stage, attention, *stage.size.decode, dtype)
    return _share(stage, filled, filled.decode, dtype)


def _share(stage: Stage, filled: Filled, batch: Batch, dtype: torch.dtype) -> float:
    """Of the step's heads, as many as no cache holds; its keys and values go to the same places each time."""
    attention, tokens = filled.backend.layers[0], len(batch.positions)
    rotary = rope(stage, attention, int(batch.positions.max()) + 1)
    width = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    qkv = stage.random(tokens, width)
    check_heads(filled, qkv, rotary, batch, dtype)
    written = tokens * attention.num_heads * attention.head_dim * qkv.itemsize
    moved = qkv.nbytes + written + tokens * token_bytes(attention, dtype)
    sides = [qkv.clone() for _ in range(stage.copies(moved))]
    made = [partial(filled.backend.rotate_and_write, 0, side, rotary, batch) for side in sides]
    return moved / seconds_of(stage, made) / copy_rate(stage)


def rope(stage: Stage, attention: LayerAttention, positions: int) -> Rotary:
    """Of a quarter of each head, behind norms over each head."""
    half = attention.head_dim // TURNED // 2
    rates = THETA ** -(torch.arange(half, device=stage.device) / half)
    angles = torch.arange(positions, device=stage.device)[:, None] * rates
    query_norm, key_norm = 1 + torch.rand(2, attention.head_dim, device=stage.device)
    return Rotary(angles.cos(), angles.sin(), query_norm, key_norm, EPS)


def check_heads(filled: Filled, qkv: torch.Tensor, rotary: Rotary, batch: Batch, dtype: torch.dtype) -> None:
    """Raises WrongResult unless queries, and the last keys and values of the first sequence, are those of float32."""
    attention = filled.backend.layers[0]
    found = filled.backend.rotate_and_write(0, qkv, rotary, batch)
    heads = qkv.float().view(len(qkv), -1, attention.head_dim)
    sizes = [attention.num_heads, attention.num_kv_heads, attention.num_kv_heads]
    query, key, value = torch.split(heads, sizes, dim=1)
    assert rotary.query_norm is not None and rotary.key_norm is not None
    require_close(found, turn(query, rotary.query_norm, rotary, batch), TOLERANCE)
    new, length = len(qkv) // len(batch.block_tables), int(batch.context_lengths[0])
    wanted = turn(key, rotary.key_norm, rotary, batch)[:new], value[:new]
    for stored, right in zip(read(filled, 0, 0, length), wanted, strict=True):
        require_close(stored[length - new :], right, max(TOLERANCE, STORED_TOLERANCE.get(dtype, 0.0)))
    require_same(found, filled.backend.rotate_and_write(0, qkv, rotary, batch))


def turn(heads: torch.Tensor, weight: torch.Tensor, rotary: Rotary, batch: Batch) -> torch.Tensor:
    """[T, heads, D] float32: normed, and the halves of their first numbers turned."""
    assert rotary.cos is not None and rotary.sin is not None
    normed = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + rotary.eps) * weight
    cos, sin = (table[batch.positions][:, None] for table in (rotary.cos, rotary.sin))
    half = cos.shape[-1]
    first, second, rest = torch.split(normed, [half, half, normed.shape[-1] - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
