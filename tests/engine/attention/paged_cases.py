"""Steps for the CUDA attention and the reference beside it, on any device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.attention.reference import ReferenceAttention
from loraplex.engine.batch import Batch

from .shapes import alike
from .test_cpu import make_batch, random

BLOCKS = 160
UNUSED = BLOCKS - 1
"""A block that no sequence ever has."""
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def make_backends(
    heads: tuple[int, int], head_dim: int = 64, block_size: int = 16, cache_dtype: torch.dtype = torch.float32,
    window: int | None = None, num_blocks: int = BLOCKS, device: str = "cpu", soft_cap: float | None = None,
    **fields: Any,
) -> tuple[CudaAttention, ReferenceAttention]:  # fmt: skip
    """Two layers, `window` in the first. Whatever no token has written is NaN, where the cache has one."""
    shape = {"block_size": block_size, "cache_dtype": cache_dtype, "num_blocks": num_blocks}
    made = alike(heads, head_dim, [window, None], soft_cap=soft_cap, **shape, **fields)
    cuda = CudaAttention(made, max_tokens=4096, device=device)
    for cache in (cuda._key, cuda._value):
        bits(cache).fill_(0x7F) if cache.itemsize == 1 else cache.fill_(float("nan"))
    for tensor in (cuda._scales, *cuda._partials[:2]):
        tensor.fill_(float("nan"))
    return cuda, ReferenceAttention(made, device=device, compute_dtype=torch.float64)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def fill_both(
    cuda: CudaAttention, reference: ReferenceAttention, sequences: list[tuple[int, int]], block_size: int = 16,
    blocks: int = UNUSED, sizes: torch.Tensor | None = None,
) -> Batch:  # fmt: skip
    """Give both the same bits at every position of the sequences in layer 0; the batch has the new tokens alone. sizes
    [T]: what the values of each position, sequence after sequence, are multiplied by."""
    device = cuda._key.device
    everything = make_batch([(0, cached + new) for cached, new in sequences], block_size, blocks=blocks)
    everything = on_device(everything, device)
    shape = len(everything.positions), cuda.num_kv_heads, cuda.head_dim
    key, value = (random(*shape, seed=seed).to(device) for seed in (2, 3))
    reference.write(0, key, value if sizes is None else value * sizes.to(device)[:, None, None], everything)
    slots = everything.slot_mapping
    block, offset = slots // block_size, slots % block_size
    for place, cache in enumerate((cuda._key, cuda._value)):
        bits(cache)[0][block, :, offset] = bits(reference._caches[0])[place, slots]
        if len(cuda._scales[0]):
            cuda._scales[0, ..., place][block, :, offset] = reference._scales[0][place, slots, :, 0]
    return on_device(make_batch(sequences, block_size, blocks=blocks), device)


def on_device(batch: Batch, device: torch.device | str) -> Batch:
    names = ("token_ids", "positions", "slot_mapping", "query_starts", "context_lengths", "block_tables", "sample_rows")
    return Batch(**{name: getattr(batch, name).to(device) for name in names})


def widen_table(batch: Batch, blocks: int) -> Batch:
    missing = blocks - batch.block_tables.shape[1]
    return replace(batch, block_tables=torch.nn.functional.pad(batch.block_tables, (0, missing), value=UNUSED))


def pad(batch: Batch, empty_contexts: int, without_tokens: int, rows: int) -> Batch:
    """Behind the batch: sequences of one token that have no context, sequences without tokens, rows of no sequence."""
    functional, tokens = torch.nn.functional, empty_contexts + rows
    last = int(batch.query_starts[-1])
    more = [*range(last + 1, last + empty_contexts + 1), *[last + empty_contexts] * without_tokens]
    starts = torch.cat((batch.query_starts, torch.tensor(more, dtype=torch.int32, device=batch.query_starts.device)))
    return replace(
        batch,
        positions=functional.pad(batch.positions, (0, tokens)),
        slot_mapping=functional.pad(batch.slot_mapping, (0, tokens), value=-1),
        query_starts=starts,
        context_lengths=functional.pad(batch.context_lengths, (0, len(more))),
        block_tables=functional.pad(batch.block_tables, (0, 0, 0, len(more)), value=UNUSED),
    )


class Launches:
    """What was launched, to be launched again as it was: what a CUDA graph does."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []
        self._calls: list[Any] = []

    def record(self, kernel: Any) -> Any:
        launches = self

        class Recorded:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                def launch(*arguments: Any, **named: Any) -> None:
                    launches.grids.append(grid)
                    launches._calls.append(lambda: kernel[grid](*arguments, **named))
                    launches._calls[-1]()

                return launch

        return Recorded()

    def run(self) -> None:
        for call in self._calls:
            call()


@contextmanager
def replay(module: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    launches = Launches()
    with monkeypatch.context() as patch:
        patch.setattr(module, "attend", launches.record(module.attend))
        yield launches
