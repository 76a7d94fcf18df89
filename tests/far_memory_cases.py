"""Places past what 32 bits count, in triton's interpreter: test_far_memory.py runs this by itself.

Each tensor has more than 2^31 numbers, of which only the last are written: a place that overflows is another one, or
no memory of the process. Of a large grid its last program alone runs.
"""

import math
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from loraplex.engine.attention.backend import Rotary
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.batch import Batch
from loraplex.engine.kernels.cuda.embedding import gather_rows
from loraplex.engine.kernels.cuda.gate import multiply_gate, multiply_gate_cast
from loraplex.engine.kernels.cuda.norm import add_rms_norm, add_rms_norm_cast
from loraplex.engine.kernels.cuda.sampling.launch import sample, with_logits
from loraplex.engine.kernels.cuda.sampling.layout import (
    BIASED,
    FILTERED,
    GREEDY,
    INTEGERS,
    PENALIZED,
    TOKEN,
    RowParameters,
    make_buffers,
    make_shape,
)  # fmt: skip
from loraplex.lora.apply.batch import PageTable
from loraplex.lora.kernels.cuda import own_logits
from loraplex.lora.kernels.cuda.entry import StepTensors, add_lora, scale_outputs
from loraplex.lora.kernels.cuda.own_embedding import add_embedding
from loraplex.lora.kernels.cuda.own_norm import norm_with_own
from loraplex.lora.kernels.cuda.own_rows import OwnRows
from loraplex.lora.kernels.cuda.tiles import PAGE, ROW_TOKENS
from loraplex.quant.kernels.cuda.cast import cast_rows
from loraplex.quant.kernels.cuda.dequantize import dequantize
from loraplex.quant.kernels.cuda.layout import INTEGER8, TILE_ORDER
from loraplex.quant.kernels.cuda.tiles import PANEL
from tests.cards import use_processors
from tests.engine.attention.shapes import alike
from tests.lora.signatures import KINDS, row_shapes
from tests.triton_interpreter import one_patch_a_module, rounding

__all__ = ["one_patch_a_module", "rounding"]
FAR = 1 << 31
LARGE_GRID = 1 << 12
NOT_RESERVED = 0x4000
"""MAP_NORESERVE: pages that are never written take no memory, however little of it there is."""
CPU, BF16, FP32, INT32, INT64 = torch.device("cpu"), torch.bfloat16, torch.float32, torch.int32, torch.int64
SIZE = 64


def far(*shape: int, dtype: torch.dtype = FP32, **_: object) -> torch.Tensor:
    """Zeros."""
    count = max(1, math.prod(shape) * dtype.itemsize)
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NOT_RESERVED)
    return torch.frombuffer(memory, dtype=torch.uint8)[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def far_empty(size: Any, *more: int, dtype: torch.dtype = FP32, **_: object) -> torch.Tensor:
    return far(*(size if isinstance(size, Sequence) else (size, *more)), dtype=dtype)


@pytest.fixture(autouse=True)
def endless_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launchers have it too, and the interpreter does not write back what never was a copy."""
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *arguments: None)
    monkeypatch.setattr(interpreter, "range", last_of_many, raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", far_empty)
        patch.setattr(torch, "zeros", far_empty)
        patch.setattr(torch, "empty_like", lambda tensor: far(*tensor.shape, dtype=tensor.dtype))
        yield


def last_of_many(*bounds: int) -> range:
    numbers = range(*bounds)
    return numbers[-1:] if len(numbers) > LARGE_GRID else numbers


def rows_of(size: int) -> int:
    return FAR // size + 2


def numbers(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert wanted.any()
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("cast", [False, True])
def test_norm(cast: bool) -> None:
    x, residual, weight = far(rows_of(SIZE), SIZE, dtype=BF16), far(rows_of(SIZE), SIZE, dtype=BF16), numbers(SIZE)
    x[-1], residual[-1] = numbers(SIZE, seed=1), numbers(SIZE, seed=2)
    wanted = (x[-1] + residual[-1]).float()
    wanted = wanted * torch.rsqrt(wanted.square().mean()) * weight.float()
    if cast:
        normed, values, scales = add_rms_norm_cast(x, residual, weight, 0.0)
        torch.testing.assert_close(values[-1].float() * scales[-1], wanted, rtol=0.1, atol=0.02)
    else:
        normed = add_rms_norm(x, residual, weight, 0.0)
    close(normed[-1], wanted)


@pytest.mark.parametrize("cast", [False, True])
def test_gate(cast: bool) -> None:
    gate_up = far(rows_of(SIZE), 2 * SIZE, dtype=BF16)
    gate_up[-1] = numbers(2 * SIZE)
    gate, up = gate_up[-1].float().chunk(2)
    wanted = torch.nn.functional.silu(gate) * up
    if cast:
        product, values, scales = multiply_gate_cast(gate_up)
        torch.testing.assert_close(values[-1].float() * scales[-1], wanted, rtol=0.1, atol=0.02)
    else:
        product = multiply_gate(gate_up)
    close(product[-1], wanted)


def test_cast() -> None:
    x = far(rows_of(SIZE), SIZE, dtype=BF16)
    x[-1] = numbers(SIZE)
    values, scales = cast_rows(x)
    torch.testing.assert_close(values[-1].float() * scales[-1], x[-1].float(), rtol=0.1, atol=0.02)


def test_embedding() -> None:
    table, ids = far(rows_of(SIZE), SIZE, dtype=BF16), far(rows_of(SIZE), dtype=INT64)
    table[-1], ids[-1] = numbers(SIZE), len(table) - 1
    close(gather_rows(ids, table, BF16)[-1], table[-1])


@pytest.mark.parametrize(("mode", "edits"), [(GREEDY, BIASED | PENALIZED), (FILTERED, BIASED)])
def test_sampling(mode: int, edits: int) -> None:
    """By the last line of the tables; without its edits another token would be drawn."""
    vocabulary = 1 << 18
    rows = rows_of(vocabulary)
    shape = make_shape(rows, vocabulary, 1)
    buffers, logits = make_buffers(shape, rows, CPU), far(rows, vocabulary)
    record = RowParameters(mode, 7, 3, rows - 1, edits, 1, -1, 1.0, 1.0, 0.0, 2.0, 0.0, 0.0)
    buffers.parameters[-1, :INTEGERS] = torch.tensor(record[:INTEGERS])
    buffers.parameters[-1, INTEGERS : len(record)] = torch.tensor(record[INTEGERS:], dtype=torch.float64).view(INT64)
    logits[-1, -4:] = torch.tensor([3.0, 8.0, 6.0, 5.0])
    buffers.bias[-1, -3], buffers.seen[-1, -2] = float("-inf"), 2
    sample(with_logits(buffers, logits, shape), shape, draws=mode != GREEDY, logprobs=False)
    assert vocabulary - int(buffers.results[TOKEN, -1]) == (1 if edits & PENALIZED else 2)
    assert not edits & PENALIZED or buffers.seen[-1, -1] == 2


def open_cache(blocks: int, dtype: torch.dtype, heads: int = 2) -> CudaAttention:
    return CudaAttention(alike((heads, 1), SIZE, num_blocks=blocks, cache_dtype=dtype), max_tokens=64, device=CPU)


@pytest.mark.parametrize(("dtype", "new"), [(BF16, 20), (torch.float8_e4m3fn, 1)], ids=str)
def test_attention_over_the_last_blocks_is_that_over_the_first(dtype: torch.dtype, new: int) -> None:
    length = 70
    qkv, angles = numbers(length, 4 * SIZE), numbers(length, SIZE // 2, dtype=FP32)
    found = []
    for blocks in (40, rows_of(16 * SIZE)):
        table = torch.arange(blocks - 5, blocks, dtype=INT32)[None]
        positions = torch.arange(length)
        slots = table[0, positions // 16].long() * 16 + positions % 16
        none = torch.empty(0, dtype=INT64)
        starts, lengths = torch.tensor([0, length], dtype=INT32), torch.tensor([length], dtype=INT32)
        everything = Batch(none, positions, slots, starts, lengths, table, none)
        cache = open_cache(blocks, dtype)
        query = cache.rotate_and_write(0, qkv, Rotary(angles.cos(), angles.sin()), everything)
        last = Batch(none, positions[-new:], slots[-new:], torch.tensor([0, new], dtype=INT32), lengths, table, none)
        found.append(cache.attend(0, query[-new:].contiguous(), last))
        assert cache._key.numel() < FAR or cache._caches[0].key.numel() > FAR
    assert torch.equal(found[0], found[1]) and found[0].any()


def test_rope_of_the_last_token() -> None:
    tokens = rows_of(SIZE)
    cache, heads = open_cache(2, BF16, heads=1), far(tokens, 3 * SIZE, dtype=BF16)
    places, slots = far(tokens, dtype=INT64), far(tokens, dtype=INT64)
    slots[-1], heads[-1] = 21, numbers(3 * SIZE)
    none, table = torch.empty(0, dtype=INT64), torch.ones(1, SIZE // 2)
    batch = Batch(none, places, slots, none, none, none, none)
    query = cache.rotate_and_write(0, heads, Rotary(table, 0 * table), batch)
    assert torch.equal(query[-1, 0], heads[-1, :SIZE]) and query[-1].any()
    for stored, part in ((cache._key, 1), (cache._value, 2)):
        assert torch.equal(stored[0, 1, 0, 5], heads[-1, part * SIZE : (part + 1) * SIZE])


class Adapters:
    """One adapter, in slot 1 of two, at the end of an arena; its one token is the last of a step."""

    def __init__(self, tokens: int, shapes: dict[str, tuple[int, int]], dtype: torch.dtype = BF16) -> None:
        self.arena = far(FAR + (1 << 20), dtype=dtype)
        places = (2, len(KINDS))
        self.table = PageTable(
            arena=self.arena, offset=far(*places, 2, dtype=INT64), rank=far(*places, 2, dtype=INT32),
            scaling=far(*places, 2), shapes=row_shapes(shapes),
        )  # fmt: skip
        self.table.vectors.fill_(-1)
        self.tokens = tokens
        self.end = len(self.arena)

    def page(self, size: int) -> int:
        """Where as many numbers are free, from the end."""
        self.end = (self.end - size) // 128 * 128
        assert self.end > FAR
        return self.end

    def give_ranks(self, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Pages of 8 ranks for both layers; A [8, in] and B [8, out] of the last."""
        place, (inputs, outputs) = (1, KINDS.index(kind)), self.table.shapes[kind]
        size = PAGE * (inputs + outputs)
        begin = self.page(2 * size)
        self.arena[begin + size : begin + 2 * size] = numbers(size, seed=place[1]) / 8
        self.table.offset[place][0], self.table.rank[place], self.table.scaling[place] = begin, PAGE, 1.0
        a, b = self.arena[begin + size : begin + 2 * size].split([PAGE * inputs, PAGE * outputs])
        return a.view(PAGE, inputs), b.view(PAGE, outputs)

    @property
    def step(self) -> StepTensors:
        table = self.table
        return StepTensors(
            chunks=torch.tensor([[1, 0, 1]], dtype=INT32), tokens=torch.tensor([self.tokens - 1] * 16, dtype=INT32),
            scales=torch.ones(16), intermediate=far(self.tokens * 64), arena=table.arena, offset=table.offset,
            rank=table.rank, scaling=table.scaling,
        )  # fmt: skip

    @property
    def own(self) -> OwnRows:
        table = self.table
        return OwnRows(table.row_index, table.row_counts, table.read_as(INT64), table.read_as(INT32))


def test_adapters_of_a_linear() -> None:
    kinds = ("q_proj", "k_proj")
    adapters = Adapters(rows_of(SIZE), dict.fromkeys(kinds, (SIZE, SIZE)))
    ranks = [adapters.give_ranks(kind) for kind in kinds]
    x, y = far(adapters.tokens, SIZE, dtype=BF16), far(adapters.tokens, 2 * SIZE, dtype=BF16)
    x[-1] = numbers(SIZE)
    indices = tuple(map(KINDS.index, kinds))
    add_lora(y, x, adapters.step, 1, 1, indices, (SIZE, SIZE))
    close(y[-1], torch.cat([x[-1].float() @ a.float().T @ b.float() for a, b in ranks]))


def test_gains_and_shifts() -> None:
    adapters = Adapters(rows_of(SIZE), {"o_proj": (SIZE, SIZE)}, FP32)
    begin, y = adapters.page(4 * SIZE), far(adapters.tokens, SIZE)
    gain, shift = adapters.arena[begin + 2 * SIZE : begin + 4 * SIZE].view(2, SIZE)
    gain[:], shift[:], y[-1] = numbers(SIZE, seed=1), numbers(SIZE, seed=2), numbers(SIZE)
    kind = KINDS.index("o_proj")
    adapters.table.vectors[1, kind] = begin
    wanted = gain * y[-1] + shift
    scale_outputs(y, adapters.step, adapters.table.floats, adapters.table.vectors, 1, 1, (kind,), (SIZE,))
    close(y[-1], wanted)


def test_norms_of_adapters() -> None:
    adapters = Adapters(rows_of(SIZE), {}, FP32)
    begin, kind = adapters.page(4 * SIZE), KINDS.index("norm")
    adapters.arena[begin + 2 * SIZE : begin + 3 * SIZE] = numbers(SIZE, seed=1)
    adapters.table.vectors[1, kind] = begin
    slots, residual = far(adapters.tokens, dtype=INT32), far(adapters.tokens, SIZE, dtype=BF16)
    slots[-1], residual[-1], normed = 1, numbers(SIZE), far(adapters.tokens, SIZE, dtype=BF16)
    norm_with_own(normed, residual, None, slots, adapters.table.floats, adapters.table.vectors, 1, kind, 0.0)
    row = residual[-1].float()
    close(normed[-1], row * torch.rsqrt(row.square().mean()) * adapters.arena[begin + 2 * SIZE : begin + 3 * SIZE])


def give_row(adapters: Adapters, kind: int, token: int) -> torch.Tensor:
    """The adapter's own row [SIZE] of one token."""
    begin = adapters.page(ROW_TOKENS * (SIZE + 2))
    row, index = adapters.arena[begin : begin + SIZE], adapters.page(4) // 4
    row[:] = numbers(SIZE, seed=3)
    own = adapters.own
    own.tokens[(begin + ROW_TOKENS * SIZE) // 2 :][:ROW_TOKENS] = torch.tensor([token] + [-1] * (ROW_TOKENS - 1))
    own.entries[index], own.starts[1, kind], own.counts[1, kind] = begin, index, 1
    return row


@pytest.mark.parametrize("token", [5, 40])
def test_embeddings_of_adapters(token: int) -> None:
    """A token of the base with ranks, and one that only the adapter has."""
    vocabulary, kind = 33, KINDS.index("embed_tokens")
    adapters = Adapters(rows_of(SIZE), {"embed_tokens": (vocabulary, SIZE)})
    adapters.give_ranks("embed_tokens")
    begin = int(adapters.table.offset[1, kind, 0])
    page = adapters.arena[begin : begin + PAGE * (vocabulary + SIZE)]
    page[:] = numbers(len(page), seed=4) / 4
    a, b = page.split([PAGE * vocabulary, PAGE * SIZE])
    row = give_row(adapters, kind, 40)
    x, ids = far(adapters.tokens, SIZE, dtype=BF16), far(adapters.tokens, dtype=INT64)
    ids[-1] = token
    add_embedding(x, ids, adapters.step, adapters.own, 1, kind, vocabulary)
    ranks = a.view(PAGE, -1)[:, 5].float() @ b.view(PAGE, SIZE).float()
    close(x[-1], ranks if token == 5 else row)


def test_logits_of_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    use_processors(monkeypatch, 2)
    width, kind = 1 << 12, KINDS.index("lm_head")
    adapters = Adapters(rows_of(width), {})
    row = give_row(adapters, kind, width - 1)
    adapters.table.vocabularies[1] = width - 90
    y, x = far(adapters.tokens, width), far(adapters.tokens, SIZE, dtype=BF16)
    x[-1] = numbers(SIZE)
    own_logits.put_own_logits(y, x, adapters.step, adapters.own, adapters.table.vocabularies, 1, kind, width - 80)
    close(y[-1, -1], row.float() @ x[-1].float())
    assert y[-1, -90:-80].eq(float("-inf")).all() and y[-1, -80:-1].eq(0).all() and y[-1, :-90].eq(0).all()


def test_dequantized_weights() -> None:
    run, runs = 128, 2
    panels = rows_of(runs * PANEL * run)
    outputs, inputs = panels * PANEL, runs * run
    codes, scales = far(panels, runs, PANEL, run, dtype=torch.uint8), far(panels, 1, PANEL)
    values = torch.arange(PANEL * run).view(PANEL, 2, 64) % 251
    codes[-1], scales[-1] = values[..., TILE_ORDER].flatten(1), torch.arange(1.0, PANEL + 1)
    dense = far(PANEL, inputs)
    dequantize[runs, 1](
        dense, codes, scales, far(panels, 1, PANEL, dtype=torch.uint8), panels - 1, FORMAT=INTEGER8, INPUTS=inputs,
        OUTPUTS=outputs, RUN=run, RUNS=runs, GROUP_RUNS=0, ZERO_RUNS=0, ORDERED=True, PANEL=PANEL,
    )  # fmt: skip
    close(dense / 1000, values.flatten(1).repeat(1, runs).float() * scales[-1, 0, :, None] / 1000)
