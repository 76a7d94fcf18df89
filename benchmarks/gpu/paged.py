"""Caches full of sequences, steps over them, and what attention must give there."""

from functools import lru_cache, partial
from typing import Final, NamedTuple

import torch

from loraplex.engine.attention.backend import CacheShape
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.attention.kernels.cuda.launch import LayerCache
from loraplex.engine.attention.layer import LayerAttention
from loraplex.engine.batch import Batch

from .clock import Call
from .figure import TOLERANCE, Stage, require_call, require_close

BLOCK: Final = 16
PEAKED: Final = 3.0
"""Size of queries: a few keys have most of the weight, so that one key that is missed shows."""
SINK: Final = 10.0
"""About: a good share of the weights of thousands of such keys, so that a sink that is missed shows."""
STORED_TOLERANCE: Final = {torch.float8_e4m3fn: 0.04}
"""Half a step of the largest number over it; 16-bit numbers are stored as they are."""
SCALE_BYTES: Final = 2
REFERENCE_QUERIES: Final = 512
"""Queries whose scores are in memory at a time."""


class Filled(NamedTuple):
    """A cache whose layers all hold the same sequences, and a step that decodes one token of each."""

    backend: CudaAttention
    decode: Batch
    sinks: torch.Tensor | None
    """[H] float32, of layers that have them."""


@lru_cache(maxsize=1)
def fill(stage: Stage, attention: LayerAttention, sequences: int, length: int, dtype: torch.dtype) -> Filled:
    return fill_anew(stage, attention, sequences, length, dtype)


def fill_anew(stage: Stage, attention: LayerAttention, sequences: int, length: int, dtype: torch.dtype) -> Filled:
    """Raises WrongResult unless the cache holds what was written to it."""
    blocks = -(-length // BLOCK)
    layers = stage.copies(token_bytes(attention, stage.size.dtype) * sequences * length)
    shape = CacheShape(layers=(attention,) * layers, num_blocks=sequences * blocks, block_size=BLOCK, cache_dtype=dtype)
    backend = CudaAttention(shape, max_tokens=max(sequences, stage.size.prefill), device=stage.device)
    table = torch.randperm(sequences * blocks, device=stage.device).to(torch.int32).view(sequences, blocks)
    written = step(stage, table, length, length)
    heads = [stage.random(sequences * length, attention.num_kv_heads, attention.head_dim) for _ in range(2)]
    for layer in range(layers):
        backend.write(layer, heads[0], heads[1], written)
    sinks = SINK + torch.randn(attention.num_heads, device=stage.device) if attention.sinks else None
    filled = Filled(backend, step(stage, table, 1, length), sinks)
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
    layer = len(filled.backend.layers) - 1
    attention = filled.backend.layers[layer]
    query = stage.random(len(batch.positions), attention.num_heads, attention.head_dim, scale=PEAKED)
    wanted = reference(filled, layer, query, batch)
    require_call(partial(filled.backend.attend, layer, query, batch, filled.sinks), wanted, TOLERANCE)
    return query


def calls(filled: Filled, query: torch.Tensor, batch: Batch) -> list[Call]:
    """One of each layer: the same step over other memory."""
    layers = range(len(filled.backend.layers))
    return [partial(filled.backend.attend, layer, query, batch, filled.sinks) for layer in layers]


def reference(filled: Filled, layer: int, query: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Softmax in float32 over keys and values as the cache has them."""
    results, attention = [], filled.backend.layers[layer]
    new = len(query) // len(batch.block_tables)
    for sequence, length in enumerate(batch.context_lengths.tolist()):
        key, value = read(filled, layer, sequence, length)
        for first in range(0, new, REFERENCE_QUERIES):
            queries = query[sequence * new :][first : min(first + REFERENCE_QUERIES, new)]
            results.append(attend(queries, key, value, length - new + first, attention, filled.sinks))
    return torch.cat(results)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, position: int, attention: LayerAttention,
    sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """query [T, H, D], the first at `position`; key, value [L, G, D] float32; sinks [H] -> [T, H, D]."""
    tokens, heads, size = query.shape
    grouped = query.float().view(tokens, key.shape[1], -1, size)
    scores = torch.einsum("tghd,sgd->ghts", grouped, key) * attention.scale
    if attention.soft_cap is not None:
        scores = attention.soft_cap * torch.tanh(scores / attention.soft_cap)
    seen = torch.arange(position, position + tokens, device=key.device)[:, None] >= torch.arange(
        len(key), device=key.device
    )
    scores = scores.masked_fill_(~seen, float("-inf"))
    if sinks is not None:
        own = sinks.float().view(key.shape[1], -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, own), dim=-1)
    weights = scores.softmax(-1)[..., : len(key)]
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


def token_bytes(attention: LayerAttention, dtype: torch.dtype) -> int:
    """Of a token's keys and values in one layer, and of their scales where numbers have 8 bits."""
    scales = 2 * SCALE_BYTES * attention.num_kv_heads if dtype.itemsize == 1 else 0
    return attention.numbers_per_token * dtype.itemsize + scales
