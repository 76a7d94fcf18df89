"""Attention over the paged cache: decodes beside the memory's speed, a prefill beside the card's product, and what a
longer context costs in 8 bits beside 16."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, NamedTuple

import torch

from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.attention.kernels.cuda.launch import LayerCache
from loraplex.engine.attention.layer import LayerAttention
from loraplex.engine.batch import Batch

from .card import copy_rate, product_rate
from .clock import Call
from .figure import TOLERANCE, Figure, Stage, require_call, require_close, seconds_of
from .size import Size

BLOCK: Final = 16
PEAKED: Final = 3.0
"""Size of queries: a few keys have most of the weight, so that one key that is missed shows."""
STORED_TOLERANCE: Final = {torch.float8_e4m3fn: 0.04}
"""Half a step of the largest number over it; 16-bit numbers are stored as they are."""
SHORTER: Final = 4
"""Parts of a sequence, of which the first is a short context and the others are what one long context is made of."""
REFERENCE_QUERIES: Final = 512
"""Queries whose scores are in memory at a time."""


class Filled(NamedTuple):
    """A cache whose layers all hold the same sequences, and a step that decodes one token of each."""

    backend: CudaAttention
    decode: Batch


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
            f"attention: decode of {growing} x {lengths[0]} to {lengths[-1]} tokens: slope of time, float8 / bfloat16",
            "x", 0.57, slope_ratio, at_least=False,
        ),
    ]  # fmt: skip


def share_of_copy(sequences: int, length: int, stage: Stage) -> float:
    filled = fill(stage, sequences, length, stage.size.dtype)
    query = checked_query(stage, filled, filled.decode)
    layers = range(len(filled.backend._caches))
    taken = seconds_of(stage, [partial(filled.backend.attend, layer, query, filled.decode) for layer in layers])
    return token_bytes(stage.size) * sequences * length / taken / copy_rate(stage)


def uneven_ratio(stage: Stage) -> float:
    """Of one long context among many short ones."""
    (sequences, length), dtype = stage.size.decode, stage.size.dtype
    backend, decode = fill(stage, sequences, length, dtype)
    sides: dict[str, Sequence[Call]] = {}
    for name, uneven in (("shared out", True), ("whole", False)):
        batch = replace(one_long(decode, length, stage.size.long), uneven=uneven)
        query = checked_query(stage, Filled(backend, batch), batch)
        sides[name] = [partial(backend.attend, layer, query, batch) for layer in range(len(backend._caches))]
    taken = stage.clock.seconds(sides)
    return taken["shared out"] / taken["whole"]


def one_long(decode: Batch, length: int, longest: int) -> Batch:
    """The first sequence has up to `longest` tokens that lie behind the short contexts of sequences of `length`."""
    short, table = length // SHORTER, decode.block_tables
    blocks = -(-short // BLOCK)
    long = table[:, blocks : length // BLOCK].flatten()[: longest // BLOCK]
    tables = torch.nn.functional.pad(table[:, :blocks], (0, len(long) - blocks))
    tables[0] = long
    lengths = torch.full_like(decode.context_lengths, short)
    lengths[0] = len(long) * BLOCK
    return replace(decode, block_tables=tables, context_lengths=lengths)


def prefill_share(stage: Stage) -> float:
    """Operations that a causal mask leaves: two products of half the square."""
    size = stage.size
    filled = fill(stage, 1, size.prefill, size.dtype)
    batch = step(stage, filled.decode.block_tables, size.prefill, size.prefill)
    query = checked_query(stage, filled, batch)
    taken = seconds_of(stage, [partial(filled.backend.attend, 0, query, batch)])
    return 2 * size.heads * size.head_dim * size.prefill**2 / taken / product_rate(stage)


def slope_ratio(stage: Stage) -> float:
    sequences, lengths = stage.size.growing
    dtypes = {"float8": torch.float8_e4m3fn, "wide": stage.size.dtype}
    sides: dict[str, Sequence[Call]] = {}
    for name, dtype in dtypes.items():
        filled = fill_anew(stage, sequences, lengths[-1], dtype)
        query = checked_query(stage, filled, filled.decode)
        layers = range(len(filled.backend._caches))
        for length in lengths:
            batch = step(stage, filled.decode.block_tables, 1, length)
            sides[f"{name} {length}"] = [partial(filled.backend.attend, layer, query, batch) for layer in layers]
    taken = stage.clock.seconds(sides)
    float8, wide = (slope(lengths, [taken[f"{name} {length}"] for length in lengths]) for name in dtypes)
    return float8 / wide


def slope(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """Of the straight line with the least squares."""
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (lengths, seconds))
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


@lru_cache(maxsize=1)
def fill(stage: Stage, sequences: int, length: int, dtype: torch.dtype) -> Filled:
    return fill_anew(stage, sequences, length, dtype)


def fill_anew(stage: Stage, sequences: int, length: int, dtype: torch.dtype) -> Filled:
    """Raises WrongResult unless the cache holds what was written to it."""
    size, blocks = stage.size, -(-length // BLOCK)
    layers = stage.copies(token_bytes(size) * sequences * length)
    attention = LayerAttention(
        num_heads=size.heads, num_kv_heads=size.kv_heads, head_dim=size.head_dim, scale=size.head_dim**-0.5
    )
    shape = CacheShape(layers=(attention,) * layers, num_blocks=sequences * blocks, block_size=BLOCK, cache_dtype=dtype)
    backend = CudaAttention(shape, max_tokens=max(sequences, size.prefill), device=stage.device)
    table = torch.randperm(sequences * blocks, device=stage.device).to(torch.int32).view(sequences, blocks)
    written = step(stage, table, length, length)
    heads = [stage.random(sequences * length, size.kv_heads, size.head_dim) for _ in range(2)]
    for layer in range(layers):
        backend.write(layer, heads[0], heads[1], written)
    filled = Filled(backend, step(stage, table, 1, length))
    for sequence in {0, sequences - 1}:
        own = slice(sequence * length, (sequence + 1) * length)
        for stored, given in zip(read(filled, layers - 1, sequence, length), heads, strict=True):
            require_close(stored, given[own], STORED_TOLERANCE.get(dtype, 0.0))
    return filled


def step(stage: Stage, table: torch.Tensor, new: int, length: int) -> Batch:
    """The last `new` tokens of sequences of `length` tokens."""
    sequences = len(table)
    positions = torch.arange(length - new, length, device=stage.device)
    slots = table[:, positions // BLOCK].long() * BLOCK + positions % BLOCK
    empty = torch.empty(0, dtype=torch.int64, device=stage.device)
    return Batch(
        token_ids=empty,
        positions=positions.repeat(sequences),
        slot_mapping=slots.flatten(),
        query_starts=torch.arange(sequences + 1, dtype=torch.int32, device=stage.device) * new,
        context_lengths=torch.full((sequences,), length, dtype=torch.int32, device=stage.device),
        block_tables=table,
        sample_rows=empty,
    )


def checked_query(stage: Stage, filled: Filled, batch: Batch) -> torch.Tensor:
    """Queries [T, H, D] of the step for which the last layer gives what is right. Raises WrongResult."""
    size, layer = stage.size, len(filled.backend._caches) - 1
    query = stage.random(len(batch.positions), size.heads, size.head_dim, scale=PEAKED)
    require_call(partial(filled.backend.attend, layer, query, batch), reference(filled, layer, query, batch), TOLERANCE)
    return query


def reference(filled: Filled, layer: int, query: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Softmax in float32 over keys and values as the cache has them."""
    results = []
    new = len(query) // len(batch.block_tables)
    for sequence, length in enumerate(batch.context_lengths.tolist()):
        key, value = read(filled, layer, sequence, length)
        for first in range(0, new, REFERENCE_QUERIES):
            queries = query[sequence * new :][first : min(first + REFERENCE_QUERIES, new)]
            results.append(attend(queries, key, value, length - new + first))
    return torch.cat(results)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, position: int) -> torch.Tensor:
    """query [T, H, D], the first at `position`; key, value [L, G, D] float32 -> [T, H, D]."""
    tokens, heads, size = query.shape
    grouped = query.float().view(tokens, key.shape[1], -1, size)
    scores = torch.einsum("tghd,sgd->ghts", grouped, key) * size**-0.5
    seen = torch.arange(position, position + tokens, device=key.device)[:, None] >= torch.arange(
        len(key), device=key.device
    )
    weights = scores.masked_fill_(~seen, float("-inf")).softmax(-1)
    return torch.einsum("ghts,sgd->tghd", weights, value).reshape(tokens, heads, size)


def read(filled: Filled, layer: int, sequence: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value [L, G, D] float32 of a sequence, from their places in the cache."""
    cache: LayerCache = filled.backend._caches[layer]
    blocks = filled.decode.block_tables[sequence].long()
    key, value = (part[blocks].float() for part in (cache.key, cache.value))
    if cache.scales.numel():
        scales = cache.scales[blocks].float()
        key, value = key * scales[..., :1], value * scales[..., 1:]
    key, value = (part.transpose(1, 2).flatten(0, 1)[:length] for part in (key, value))
    return key, value


def token_bytes(size: Size) -> int:
    """Of a token's keys and values in one layer, 16 bits each."""
    return 2 * size.kv_heads * size.head_dim * size.dtype.itemsize
