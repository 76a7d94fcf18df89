"""The CUDA attention against gather and softmax in float64, in triton's interpreter: test_triton_interpreted.py runs
this by itself.

The interpreter has no bfloat16 arithmetic: products of bfloat16 are taken in fp32 here. All else is as compiled. What
no token has written is NaN, in the cache and in every tensor that is allocated on the way.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from loraplex.engine.attention.backend import Rotary
from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.attention.eight_bits import LARGEST, quantize
from loraplex.engine.attention.kernels.cuda import launch
from tests.cards import CARDS, use_card, use_processors
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .paged_cases import (
    BLOCKS,
    TOLERANCE,
    UNUSED,
    bits,
    fill_both,
    make_backends,
    pad,
    replay,
    widen_table,
)
from .test_cpu import make_batch, random

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]

NAN = float("nan")
E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
DECODES = [(0, 1), (15, 1), (16, 1), (400, 1)]
MIXED = [(0, 1), (40, 5), (0, 17), (270, 9)]
LONG = [(0, 1), (255, 1), (512, 1), (700, 1)]


# Query heads, KV heads, head size, block size, dtype of the cache, of the query, window, soft cap.
CASES: dict[str, tuple[int, int, int, int, torch.dtype, torch.dtype, int | None, float | None]] = {
    "mha": (2, 2, 64, 16, FP32, FP32, None, None),
    "gqa7": (14, 2, 64, 16, FP32, FP32, None, None),
    "gqa8, window, blocks of 32": (8, 1, 64, 32, FP16, FP16, 30, None),
    "gqa5, window of 1": (5, 1, 64, 16, FP32, FP32, 1, None),
    "gqa4, cap, blocks of 8": (4, 1, 80, 8, FP32, FP32, None, 3.0),
    "gqa71": (71, 1, 64, 16, FP32, FP32, None, None),
    "heads of 96, window, cap": (3, 1, 96, 16, FP16, FP16, 300, 20.0),
    "heads of 112": (4, 2, 112, 16, FP32, FP32, None, None),
    "heads of 128": (4, 1, 128, 64, BF16, BF16, None, None),
    "heads of 256": (2, 1, 256, 16, FP32, FP32, 100, None),
    "bfloat16 cache": (4, 1, 64, 16, BF16, FP32, None, None),
    "int8": (7, 1, 64, 16, INT8, FP32, None, None),
    "int8 in float16": (4, 1, 80, 16, INT8, FP16, None, None),
    "int8 in bfloat16": (2, 1, 64, 16, INT8, BF16, 40, None),
    "e4m3": (8, 1, 64, 16, E4M3, FP32, None, 10.0),
    "e4m3 in bfloat16": (4, 1, 96, 32, E4M3, BF16, None, None),
    "e5m2": (4, 1, 64, 16, E5M2, FP32, 200, None),
    "e5m2 in float16": (4, 2, 64, 16, E5M2, FP16, None, None),
}


@pytest.mark.parametrize("sequences", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str, sequences: list[tuple[int, int]]) -> None:
    *heads, size, block_size, cache, dtype, window, cap = CASES[name]
    backends = make_backends(heads, size, block_size, cache, window=window, soft_cap=cap)
    batch = fill_both(*backends, sequences, block_size)
    query = random(len(batch.positions), heads[0], size, dtype=dtype)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    assert actual.dtype == dtype
    # Weights of values in 8 bits are bfloat16, which has room for scales of any size, but in decodes.
    tolerance = TOLERANCE[BF16 if cache in LARGEST and dtype == FP16 and sequences is MIXED else dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("window", [None, 300])
def test_any_number_of_splits(splits: int, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """From none that has all keys to more than there are keys for."""
    monkeypatch.setattr(launch, "count_splits", lambda *shape: splits)
    backends = make_backends((2, 1), window=window)
    for sequences in ([(0, 2), *LONG[1:]], [(500, 7), (3, 2)]):
        batch = fill_both(*backends, sequences)
        query = random(len(batch.positions), 2, 64)
        actual, expected = (backend.attend(0, query, batch) for backend in backends)
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)
        if splits == 3:
            assert torch.equal(backends[0].attend(0, query, batch), actual)


def parts_of(cuda: CudaAttention) -> int:
    """Programs that left partial results for the first head."""
    return int((~cuda._partials.states[:, 0, 0].isnan()).sum())


@pytest.mark.parametrize(
    ("spare", "searched", "whole", "windowed"),
    [(1, 2, 0, 0), (2, 128, 2, 0), (3, 2, 3, 2), (8, 128, 8, 8), (40, 2, 17, 9)],
)
def test_decodes_share_out_what_all_of_them_see(
    spare: int, searched: int, whole: int, windowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one program a sequence to no fewer than 128 keys a program; in one look for a part's sequence or several."""
    monkeypatch.setattr(launch, "count_spare", lambda *shape: spare)
    monkeypatch.setattr(launch, "SEARCHED", searched)
    for window, parts in ((None, whole), (500, windowed)):
        backends = make_backends((2, 1), window=window)
        batch = fill_both(*backends, [(0, 1), (1500, 1), (3, 1), (255, 1), (300, 1)])
        query = random(5, 2, 64)
        actual, expected = (backend.attend(0, query, batch) for backend in backends)
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)
        assert parts_of(backends[0]) == parts
        assert torch.equal(backends[0].attend(0, query, batch), actual)


def test_where_sequences_fill_the_device_keys_are_cut_for_one_long_context_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_processors(monkeypatch, 2)
    monkeypatch.setattr("loraplex.engine.attention.kernels.cuda.tiles.MANY_PROGRAMS", 4)
    backends = make_backends((2, 1))
    batch = fill_both(*backends, [(3, 1), (2100, 1), (40, 1), (7, 1)])
    assert backends[0].is_uneven(batch.context_lengths.numpy())
    assert not backends[0].is_uneven(np.array([2100, 2000, 2000, 2000]))
    query = random(4, 2, 64)
    for uneven, parts in ((False, 0), (True, 4)):
        batch = widen_table(replace(batch, uneven=uneven), BLOCKS)
        actual, expected = (backend.attend(0, query, batch) for backend in backends)
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)
        assert parts_of(backends[0]) == parts


def test_places_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = make_backends((4, 1), cache_dtype=INT8)
    batch = fill_both(*backends, DECODES)
    query = random(len(batch.positions), 4, 64)
    narrow = backends[0].attend(0, query, batch)
    monkeypatch.setattr(launch, "WIDE_NUMBERS", 0)
    assert torch.equal(backends[0].attend(0, query, batch), narrow)


def test_more_sequences_than_one_look_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SEARCHED", 4)
    backends = make_backends((2, 1))
    sequences = [*[(index % 3, 1) for index in range(7)], (0, 0), (2, 4), (0, 0), (520, 1)]
    batch = fill_both(*backends, sequences)
    query = random(len(batch.positions), 2, 64)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(
    ("sequences", "without_tokens"), [(DECODES, 1), (MIXED, 1), (LONG, 3)], ids=["decodes", "mixed", "shared out"]
)
def test_padding_is_left_alone(
    sequences: list[tuple[int, int]], without_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sequences of one token and no context, some of no token, and three rows of no sequence."""
    use_card(monkeypatch, CARDS[80])
    backends = make_backends((7, 1))
    batch = fill_both(*backends, sequences)
    padded, tokens = pad(batch, empty_contexts=2, without_tokens=without_tokens, rows=3), len(batch.positions)
    query = torch.cat((random(tokens, 7, 64), torch.full((5, 7, 64), NAN)))
    actual, expected = backends[0].attend(0, query, padded), backends[1].attend(0, query[:tokens], batch)
    torch.testing.assert_close(actual[:tokens], expected, rtol=3e-6, atol=3e-6)
    assert actual[tokens : tokens + 2].eq(0).all() and actual[tokens + 2 :].isnan().all()
    assert sequences is not LONG or parts_of(backends[0]) > 0


@pytest.mark.parametrize("rows", [2, 17, 70], ids=str)
def test_a_padded_step_with_prompts_is_none_of_decodes(rows: int) -> None:
    """As many sequences as tokens, most of them idle: by tiles of decodes and of prompts."""
    backends = make_backends((4, 2))
    sequences = [(40, 5), (0, 1), (270, 9), (13, 1)]
    batch = fill_both(*backends, sequences)
    tokens = len(batch.positions)
    padded = pad(batch, 0, tokens + rows - len(sequences), rows)
    padded = replace(widen_table(padded, BLOCKS), mixed=True)
    assert len(padded.positions) == len(padded.context_lengths)
    query = torch.cat((random(tokens, 4, 64), torch.full((rows, 4, 64), NAN)))
    actual, expected = backends[0].attend(0, query, padded), backends[1].attend(0, query[:tokens], batch)
    torch.testing.assert_close(actual[:tokens], expected, rtol=3e-6, atol=3e-6)
    assert actual[tokens:].isnan().all()


@pytest.mark.parametrize("cache", [FP32, E4M3], ids=str)
def test_a_captured_launch_is_right_for_any_contexts(cache: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured with short ones, replayed with longer ones, fewer sequences and other starts."""
    backends = make_backends((2, 1), cache_dtype=cache)
    captured = widen_table(fill_both(*backends, [(0, 1), (3, 1), (7, 2)]), BLOCKS)
    query = random(4, 2, 64)
    with replay(launch, monkeypatch) as launches:
        output = backends[0].attend(0, query, captured)
    assert [grid[2] > 2 for grid in launches.grids] == [True]
    for sequences in ([(900, 1), (255, 1), (600, 2)], [(700, 1), (30, 1)], [(0, 2), (0, 1), (1100, 1)]):
        batch = fill_both(*backends, sequences)
        tokens = len(batch.positions)
        wanted = pad(batch, 0, 3 - len(sequences), 4 - tokens) if len(sequences) < 3 else batch
        captured.query_starts.copy_(wanted.query_starts)
        captured.context_lengths.copy_(wanted.context_lengths)
        captured.block_tables.fill_(UNUSED)
        captured.block_tables[: len(batch.block_tables), : batch.block_tables.shape[1]] = batch.block_tables
        output.fill_(NAN)
        launches.run()
        expected = backends[1].attend(0, query[:tokens], batch)
        torch.testing.assert_close(output[:tokens], expected, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("window", [None, 300])
def test_a_captured_decode_is_right_for_any_contexts(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured with short ones, of which none is cut; replayed with long ones and with padding. Behind its tensors lies
    what a larger step left there."""
    use_card(monkeypatch, CARDS[80])
    backends = make_backends((2, 1), window=window)
    captured = widen_table(fill_both(*backends, [(0, 1), (3, 1), (7, 1), (1500, 1)]), BLOCKS)
    captured = replace(captured, query_starts=captured.query_starts[:4], context_lengths=captured.context_lengths[:3])
    captured = replace(captured, block_tables=captured.block_tables[:3])
    query = random(4, 2, 64)[:3]
    with replay(launch, monkeypatch) as launches:
        output = backends[0].attend(0, query, captured)
    assert launches.grids[0][0] > 60 and launches.grids[0][2] == 1 and parts_of(backends[0]) == 0
    for sequences in ([(900, 1), (255, 1), (600, 1)], [(700, 1), (30, 1)], [(1500, 1)], [(5, 1)]):
        batch, tokens = fill_both(*backends, sequences), len(sequences)
        wanted = pad(batch, 0, 3 - tokens, 3 - tokens) if tokens < 3 else batch
        captured.query_starts.copy_(wanted.query_starts)
        captured.context_lengths.copy_(wanted.context_lengths)
        captured.block_tables.fill_(UNUSED)
        captured.block_tables[:tokens, : batch.block_tables.shape[1]] = batch.block_tables
        output.fill_(NAN)
        for tensor in backends[0]._partials[:2]:
            tensor.fill_(NAN)
        launches.run()
        assert not backends[0]._partials.arrivals.any(), "as the next launch needs it"
        expected = backends[1].attend(0, query[:tokens], batch)
        torch.testing.assert_close(output[:tokens], expected, rtol=3e-6, atol=3e-6)
        assert (parts_of(backends[0]) > 1) == (sequences != [(5, 1)])


def test_not_a_number_stays_in_its_row_and_huge_scores_do_not_overflow() -> None:
    backends = make_backends((4, 1))
    batch = fill_both(*backends, [(300, 1), (0, 9)])
    query = random(10, 4, 64) * 1e4
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=1e-2, rtol=1e-2)
    query[3, 1] = NAN
    poisoned = backends[0].attend(0, query, batch)
    assert poisoned[3, 1].isnan().all()
    poisoned[3, 1] = actual[3, 1]
    assert torch.equal(poisoned, actual)


@pytest.mark.parametrize("with_norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, FP32), (80, FP16), (128, BF16), (6, FP32)], ids=str)
def test_rotating_and_writing_equals_its_steps(head_dim: int, dtype: torch.dtype, with_norm: bool) -> None:
    backends = make_backends((14, 2), head_dim, cache_dtype=dtype)
    angles = random(60, head_dim // 2)
    norms = (random(head_dim, seed=5), random(head_dim, seed=6)) if with_norm else (None, None)
    rotary = Rotary(angles.cos(), angles.sin(), *norms)
    batch = make_batch([(0, 3), (50, 1)])
    qkv = random(4, 18 * head_dim, dtype=dtype)
    actual, expected = (backend.rotate_and_write(1, qkv, rotary, batch) for backend in backends)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    slots = batch.slot_mapping
    for stored, place in ((backends[0]._key, 0), (backends[0]._value, 1)):
        lines = stored[1].transpose(1, 2).flatten(0, 1)
        wanted = backends[1]._caches[1][place, slots]
        torch.testing.assert_close(lines[slots], wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert lines.isnan().all(dim=(1, 2)).sum() == len(lines) - 4 and stored[0].isnan().all()


@pytest.mark.parametrize("dtype", [FP16, *LARGEST], ids=str)
def test_stored_bits_are_those_of_torch(dtype: torch.dtype) -> None:
    """Zeros, subnormal and huge heads among them; a token with a negative slot is not written."""
    cuda, _ = make_backends((2, 2), cache_dtype=dtype)
    heads = random(2, 12, 2, 64) * torch.logspace(-40, 4, 12)[:, None, None]
    heads[:, 5] = 0.0
    batch = make_batch([(0, 12)])
    slots = batch.slot_mapping.clone()
    batch.slot_mapping[[3, 11]] = -1
    cuda.write(0, *heads, batch)
    wanted, scales = quantize(heads, dtype) if dtype in LARGEST else (heads.to(dtype), None)
    there = torch.tensor([index not in (3, 11) for index in range(12)])
    for place, stored in enumerate((cuda._key, cuda._value)):
        lines = bits(stored[0].transpose(1, 2).flatten(0, 1)[slots])
        assert torch.equal(lines[there], bits(wanted[place])[there])
        assert not torch.equal(lines[~there], bits(wanted[place])[~there])
        if scales is not None:
            kept = cuda._scales[0, ..., place].transpose(1, 2).flatten(0, 1)[slots]
            assert torch.equal(kept[there].float(), scales[place, there, :, 0]) and kept[~there].isnan().all()


def test_blocks_are_copied_whole_in_every_layer() -> None:
    backends = make_backends((14, 2), cache_dtype=E4M3)
    batch = fill_both(*backends, [(20, 1)])
    query = random(1, 14, 64)
    before, sources = backends[0].attend(0, query, batch), batch.block_tables[0].tolist()
    targets = [block for block in range(BLOCKS) if block not in sources][-3:-1]
    backends[0].copy_blocks(list(zip(sources, targets, strict=True)))
    batch.block_tables = torch.tensor([targets], dtype=torch.int32)
    assert torch.equal(backends[0].attend(0, query, batch), before) and before.any()


def test_bytes_and_head_sizes() -> None:
    narrow, wide = (make_backends((4, 2), cache_dtype=dtype) for dtype in (INT8, BF16))
    for cuda, reference in (narrow, wide):
        assert cuda.cache_bytes() == reference.cache_bytes()
    for size in (7, 514):
        with pytest.raises(ValueError, match=f"head_dim is {size}; on CUDA it must be even and at most 512"):
            make_backends((4, 2), size)
