"""The numba backend against gather and softmax in float64: ragged mixed batches, every layout, every edge of a tile."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from loraplex.engine.attention.backend import AttentionBackend, Rotary
from loraplex.engine.attention.cpu import CpuAttention
from loraplex.engine.attention.reference import ReferenceAttention
from loraplex.engine.batch import Batch

from .shapes import alike

# Heads, sizes and dtypes of one test are those of another where they can be: each new mixture compiles for ten seconds.
BLOCKS = 160
HEADS = {"mha": (2, 2), "gqa4": (4, 1), "gqa7": (14, 2), "gqa8": (8, 1)}


def make_backends(
    heads: tuple[int, int] = (4, 1), head_dim: int = 64, window: int | None = None, **fields: Any
) -> tuple[CpuAttention, ReferenceAttention]:
    made = alike(heads, head_dim, [window, None], num_blocks=BLOCKS, **fields)
    return CpuAttention(made), ReferenceAttention(made, compute_dtype=torch.float64)


def make_batch(sequences: list[tuple[int, int]], block_size: int = 16, seed: int = 0, blocks: int = BLOCKS) -> Batch:
    """sequences: (tokens already cached, new tokens), each with its own blocks in random order."""
    shuffled = torch.randperm(blocks, generator=torch.Generator().manual_seed(seed)).tolist()
    lengths = [cached + new for cached, new in sequences]
    widest = max(-(-length // block_size) for length in lengths)
    tables = [[shuffled.pop() for _ in range(-(-length // block_size))] for length in lengths]
    positions = [torch.arange(cached, cached + new) for cached, new in sequences]
    owned = [torch.tensor(table, dtype=torch.int64) for table in tables]
    slots = [t[p // block_size] * block_size + p % block_size for t, p in zip(owned, positions, strict=True)]
    starts = [0, *itertools.accumulate(new for _, new in sequences)]
    return Batch(
        token_ids=torch.zeros(starts[-1], dtype=torch.int64),
        positions=torch.cat(positions),
        slot_mapping=torch.cat(slots),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lengths=torch.tensor(lengths, dtype=torch.int32),
        block_tables=torch.tensor([table + [0] * (widest - len(table)) for table in tables], dtype=torch.int32),
        sample_rows=torch.tensor(starts[1:]) - 1,
    )


def random(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def fill(backends: tuple[AttentionBackend, ...], sequences: list[tuple[int, int]], **shape: Any) -> Batch:
    """Write every position of the sequences in layer 0; the batch has the new tokens alone."""
    heads, head_dim = shape.pop("kv_heads"), shape.pop("head_dim")
    everything = make_batch([(0, cached + new) for cached, new in sequences], **shape)
    key, value = (random(len(everything.positions), heads, head_dim, seed=s) for s in (2, 3))
    for backend in backends:
        backend.write(0, key, value, everything)
    return make_batch(sequences, **shape)


MIXED = [(0, 1), (15, 1), (16, 1), (511, 1), (512, 1), (700, 1), (0, 33), (40, 5), (250, 17), (0, 2)]


@pytest.mark.parametrize("window", [None, 1, 30, 300])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS.keys())
def test_mixed_batch_equals_the_reference(heads: tuple[int, int], window: int | None) -> None:
    backends = make_backends(heads, window=window)
    batch = fill(backends, MIXED, kv_heads=heads[1], head_dim=64)
    query = random(len(batch.positions), heads[0], 64)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("head_dim", [6, 16, 80, 96, 128, 256])
def test_head_sizes(head_dim: int) -> None:
    backends = make_backends((14, 2), head_dim)
    batch = fill(backends, MIXED[:9], kv_heads=2, head_dim=head_dim)
    query = random(len(batch.positions), 14, head_dim)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(cache: torch.dtype, block_size: int) -> None:
    backends = make_backends((14, 2), cache_dtype=cache, block_size=block_size)
    sequences = MIXED[3:8]
    batch = fill(backends, sequences, kv_heads=2, head_dim=64, block_size=block_size)
    query = random(len(batch.positions), 14, 64)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("window", [None, 100])
def test_a_sequence_does_not_depend_on_its_neighbours(window: int | None) -> None:
    cpu, _ = make_backends((14, 2), window=window)
    batch = fill((cpu,), MIXED, kv_heads=2, head_dim=64)
    query = random(len(batch.positions), 14, 64)
    together = cpu.attend(0, query, batch)
    for sequence, (first, last) in enumerate(itertools.pairwise(batch.query_starts.tolist())):
        alone = Batch(
            token_ids=batch.token_ids[first:last],
            positions=batch.positions[first:last],
            slot_mapping=batch.slot_mapping[first:last],
            query_starts=torch.tensor([0, last - first], dtype=torch.int32),
            context_lengths=batch.context_lengths[sequence : sequence + 1],
            block_tables=batch.block_tables[sequence : sequence + 1],
            sample_rows=torch.tensor([last - first - 1]),
        )
        assert torch.equal(cpu.attend(0, query[first:last], alone), together[first:last])


@pytest.mark.parametrize("window", [None, 100])
def test_chunks_give_the_bits_of_the_whole(window: int | None) -> None:
    cpu, _ = make_backends((14, 2), window=window)
    whole = fill((cpu,), [(0, 600)], kv_heads=2, head_dim=64)
    query = random(600, 14, 64)
    expected = cpu.attend(0, query, whole)
    for first, last in itertools.pairwise([0, 2, 50, 177, 179, 512, 600]):
        chunk = make_batch([(first, last - first)])
        chunk.block_tables = whole.block_tables
        assert torch.equal(cpu.attend(0, query[first:last], chunk), expected[first:last])
    decode = make_batch([(599, 1)])
    decode.block_tables = whole.block_tables
    torch.testing.assert_close(cpu.attend(0, query[599:], decode), expected[599:], atol=1e-6, rtol=1e-5)


def test_keys_that_have_no_weight_end_nobody_elses_step() -> None:
    """Of an adapter whose queries and keys overflow, scores are minus infinity: nothing is left to divide by."""
    cpu, _ = make_backends((14, 2))
    sequences = [(20, 1), (700, 1), (0, 9), (20, 1), (700, 1), (0, 9)]
    batch = fill((cpu,), sequences, kv_heads=2, head_dim=64)
    query = random(len(batch.positions), 14, 64)
    wanted = cpu.attend(0, query, batch)
    broken = make_batch([(0, cached + new) for cached, new in sequences])
    key, value = (random(len(broken.positions), 2, 64, seed=seed) for seed in (2, 3))
    for sequence in range(3):
        key[broken.query_starts[sequence] : broken.query_starts[sequence + 1]] = -1e30
    cpu.write(0, key, value, broken)
    query[:11] = 1e30
    answers = cpu.attend(0, query, batch)
    assert answers[:11].isnan().all() and torch.equal(answers[11:], wanted[11:])


@pytest.mark.parametrize("sequence", [(20, 1), (20, 9)], ids=["decode", "prefill"])
def test_what_lies_behind_a_sequence_is_never_read(sequence: tuple[int, int]) -> None:
    cpu, _ = make_backends((14, 2))
    cpu.write(0, *(torch.full((BLOCKS * 16, 2, 64), float("nan")) for _ in range(2)), make_batch([(0, BLOCKS * 16)]))
    batch = fill((cpu,), [sequence], kv_heads=2, head_dim=64)
    assert cpu.attend(0, random(sequence[1], 14, 64), batch).isfinite().all()


def test_a_poisoned_sequence_poisons_itself_alone() -> None:
    cpu, _ = make_backends((14, 2))
    batch = fill((cpu,), MIXED, kv_heads=2, head_dim=64)
    query = random(len(batch.positions), 14, 64)
    clean = cpu.attend(0, query, batch)
    query[2] = float("nan")
    poisoned = cpu.attend(0, query, batch)
    others = torch.arange(len(query)) != 2
    assert poisoned[2].isnan().all() and torch.equal(poisoned[others], clean[others])


def test_huge_scores_do_not_overflow() -> None:
    backends = make_backends()
    batch = fill(backends, [(300, 1), (0, 40)], kv_heads=1, head_dim=64)
    query = random(41, 4, 64) * 1e4
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("with_norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("head_dim", [56, 64, 128])
def test_rotate_and_write_equals_its_steps(head_dim: int, with_norm: bool) -> None:
    backends = make_backends((14, 2), head_dim)
    angles = random(800, head_dim // 2)
    norms = (random(head_dim, seed=5), random(head_dim, seed=6)) if with_norm else (None, None)
    rotary = Rotary(angles.cos(), angles.sin(), *norms)
    for sequences in ([(700, 1), (3, 1)], [(0, 40), (9, 1)]):
        batch = make_batch(sequences)
        qkv = random(len(batch.positions), 18 * head_dim)
        actual, expected = (backend.rotate_and_write(1, qkv, rotary, batch) for backend in backends)
        torch.testing.assert_close(actual, expected, atol=3e-6, rtol=3e-6)
        fresh = make_batch([(0, new) for _, new in sequences])
        fresh.block_tables, fresh.slot_mapping = batch.block_tables, batch.slot_mapping
        attended, attended_reference = (backend.attend(1, actual, batch) for backend in backends)
        torch.testing.assert_close(attended, attended_reference, atol=3e-6, rtol=3e-6)


def test_layers_do_not_share_their_cache_and_blocks_copy_whole() -> None:
    backends = make_backends((14, 2))
    batch = fill(backends, [(20, 1)], kv_heads=2, head_dim=64)
    query = random(1, 14, 64)
    before = [backend.attend(0, query, batch) for backend in backends]
    sources = batch.block_tables[0].tolist()
    targets = [block for block in range(BLOCKS) if block not in sources][:2]
    for backend in backends:
        backend.copy_blocks(list(zip(sources, targets, strict=True)))
    copied = make_batch([(20, 1)])
    copied.block_tables = torch.tensor([targets], dtype=torch.int32)
    for backend, expected in zip(backends, before, strict=True):
        assert torch.equal(backend.attend(0, query, copied), expected)
        assert not backend.attend(1, query, copied).any()


def test_block_size_must_be_whole_tiles() -> None:
    with pytest.raises(ValueError, match="block_size is 8; on a CPU it must be a multiple of 16"):
        make_backends(block_size=8)


def test_cache_bytes() -> None:
    cpu, reference = make_backends((4, 2), cache_dtype=torch.bfloat16)
    assert cpu.cache_bytes() == reference.cache_bytes() == 2 * 2 * BLOCKS * 16 * 2 * 64 * 2


def test_a_cache_takes_memory_as_it_fills() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    large = CpuAttention(alike((4, 2), 64, [None] * 4, num_blocks=20_000))
    assert large.cache_bytes() > 1 << 30
    assert resident() - before < large.cache_bytes() / 10
    assert large.arguments(make_batch([(0, 5)])).key.ctypes.data % 64 == 0
