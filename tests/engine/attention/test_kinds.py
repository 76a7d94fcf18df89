"""Every kind of attention that models have, on the CPU against float64: alone, in pairs, in decodes and prompts."""

import itertools
from typing import Any, Final

import pytest
import torch

from loraplex.engine.attention.backend import AttentionBackend, CacheShape, Rotary
from loraplex.engine.attention.cpu import CpuAttention, cpu_attention
from loraplex.engine.attention.eight_bits import LARGEST
from loraplex.engine.attention.layer import LayerAttention
from loraplex.engine.attention.mixed import MixedAttention
from loraplex.engine.attention.reference import ReferenceAttention

from .shapes import alike
from .test_cpu import BLOCKS, MIXED, fill, make_batch, random

HEADS: Final = (14, 2)
POSITIONS: Final = 800
KINDS: Final[dict[str, dict[str, Any]]] = {
    "soft cap": {"soft_cap": 2.5},
    "sinks": {"sinks": True},
    "window": {"window": 30},
    "scale": {"scale": 0.3},
}
"""Fields of a layer, large enough to change what comes out by far more than rounding."""
CACHES: Final = (torch.float32, torch.bfloat16, *LARGEST)


def make_pair(head_dim: int = 64, window: int | None = None, **fields: Any) -> tuple[CpuAttention, ReferenceAttention]:
    made = alike(HEADS, head_dim, [window, None], num_blocks=BLOCKS, **fields)
    return CpuAttention(made), ReferenceAttention(made, compute_dtype=torch.float64)


def sinks_of(backend: CpuAttention) -> torch.Tensor | None:
    return random(backend.num_heads, seed=7) if backend.layers[0].sinks else None


PAIRS: Final = [
    *[(name,) for name in KINDS],
    *itertools.combinations(KINDS, 2),
]


@pytest.mark.parametrize("kinds", PAIRS, ids="+".join)
def test_kinds_alone_and_in_pairs(kinds: tuple[str, ...]) -> None:
    """Decodes in one piece and in several, prompts and chunks of prompts."""
    fields = {key: value for kind in kinds for key, value in KINDS[kind].items()}
    backends, (_, plain) = make_pair(**fields), make_pair()
    batch = fill((*backends, plain), MIXED, kv_heads=2, head_dim=64)
    query = random(len(batch.positions), 14, 64) * 3
    actual, expected = (backend.attend(0, query, batch, sinks_of(backends[0])) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert (expected - plain.attend(0, query, batch)).norm() > 0.1 * expected.norm()


@pytest.mark.parametrize("cache", CACHES, ids=str)
@pytest.mark.parametrize("static", [False, True], ids=["own", "static"])
def test_every_dtype_of_the_cache(cache: torch.dtype, static: bool) -> None:
    if static and cache not in LARGEST:
        pytest.skip("static scales are those of 8 bits")
    scales = torch.full((2, 2, 2), 3 / LARGEST[cache]) if static else None
    backends = make_pair(window=100, soft_cap=2.5, sinks=True, cache_dtype=cache, static_scales=scales)
    batch = fill(backends, MIXED, kv_heads=2, head_dim=64)
    query, sinks = random(len(batch.positions), 14, 64) * 3, sinks_of(backends[0])
    actual, expected = (backend.attend(0, query, batch, sinks) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("head_dim", [24, 320, 512])
def test_head_sizes(head_dim: int, cache: torch.dtype) -> None:
    backends = make_pair(head_dim, cache_dtype=cache, soft_cap=5.0)
    batch = fill(backends, MIXED[3:9], kv_heads=2, head_dim=head_dim)
    query = random(len(batch.positions), 14, head_dim)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_give_the_bits_of_the_whole(kind: str) -> None:
    """And two sequences that share their first blocks what each gives alone."""
    cpu, _ = make_pair(**KINDS[kind])
    whole = fill((cpu,), [(0, 600)], kv_heads=2, head_dim=64)
    query, sinks = random(600, 14, 64), sinks_of(cpu)
    expected = cpu.attend(0, query, whole, sinks)
    for first, last in itertools.pairwise([0, 2, 50, 177, 179, 512, 600]):
        chunk = make_batch([(first, last - first)])
        chunk.block_tables = whole.block_tables
        assert torch.equal(cpu.attend(0, query[first:last], chunk, sinks), expected[first:last])
    both = make_batch([(200, 8), (320, 4)])
    both.block_tables = whole.block_tables[:, :21].expand(2, -1).contiguous()
    rows = torch.cat((query[200:208], query[320:324]))
    assert torch.equal(cpu.attend(0, rows, both, sinks), torch.cat((expected[200:208], expected[320:324])))
    decode = make_batch([(599, 1)])
    decode.block_tables = whole.block_tables
    torch.testing.assert_close(cpu.attend(0, query[599:], decode, sinks), expected[599:], atol=1e-6, rtol=1e-5)


def test_sinks_that_outweigh_all_keys_leave_nothing() -> None:
    backends = make_pair(sinks=True)
    batch = fill(backends, [(700, 1), (0, 9)], kv_heads=2, head_dim=64)
    query, sinks = random(10, 14, 64), torch.full((14,), 60.0)
    sinks[7:] = -60.0
    answer = backends[0].attend(0, query, batch, sinks)
    assert answer[:, :7].abs().max() < 1e-20 and answer[:, 7:].abs().min() > 0
    torch.testing.assert_close(answer, backends[1].attend(0, query, batch, sinks), atol=3e-6, rtol=1e-5)


ROTARIES: Final = {
    "part": {"turned": 32},
    "pairs": {"interleaved": True},
    "part of pairs": {"turned": 32, "interleaved": True},
    "odd part": {"turned": 24},
    "no rope": {"turned": 0},
    "no rope, norms": {"turned": 0, "norms": "single"},
    "norms": {"norms": "single"},
    "whole norms": {"norms": "whole"},
    "part, whole norms": {"turned": 32, "norms": "whole"},
    "pairs, norms": {"interleaved": True, "norms": "single"},
    "value norm": {"value_norm": True, "norms": "single"},
    "query scale": {"query_scale": True},
    "all": {"turned": 32, "interleaved": True, "norms": "whole", "value_norm": True, "query_scale": True},
}


def make_rotary(
    head_dim: int, turned: int | None = None, norms: str = "", query_scale: bool = False,
    heads: tuple[int, int] = HEADS, **fields: Any,
) -> Rotary:  # fmt: skip
    angles = random(POSITIONS, (head_dim if turned is None else turned) // 2)
    tables = (None, None) if turned == 0 else (angles.cos(), angles.sin())
    sizes = {"": None, "single": (head_dim, head_dim), "whole": (heads[0] * head_dim, heads[1] * head_dim)}[norms]
    weights = (None, None) if sizes is None else (random(sizes[0], seed=5), random(sizes[1], seed=6))
    scale = random(POSITIONS, seed=8) if query_scale else None
    return Rotary(*tables, *weights, eps=1e-3, query_scale=scale, **fields)


@pytest.mark.parametrize("head_dim", [64, 72])
@pytest.mark.parametrize("kind", ROTARIES)
def test_heads_before_attention(kind: str, head_dim: int) -> None:
    """Of few tokens, by one thread, and of many. Heads of 72 numbers are padded, and turned by torch."""
    backends, rotary = make_pair(head_dim), make_rotary(head_dim, **ROTARIES[kind])
    for sequences in ([(700, 1), (3, 1)], [(0, 40), (9, 1)]):
        batch = make_batch(sequences)
        qkv = random(len(batch.positions), 18 * head_dim)
        given = qkv.clone()
        actual, expected = (backend.rotate_and_write(1, qkv, rotary, batch) for backend in backends)
        torch.testing.assert_close(actual, expected, atol=3e-6, rtol=3e-6)
        attended, wanted = (backend.attend(1, actual, batch) for backend in backends)
        torch.testing.assert_close(attended, wanted, atol=3e-6, rtol=3e-6)
        assert torch.equal(qkv, given)


def layer(heads: tuple[int, int], head_dim: int, **fields: Any) -> LayerAttention:
    return LayerAttention(
        num_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, **{"scale": head_dim**-0.5} | fields
    )


LOCAL, GLOBAL = layer((8, 2), 64, window=30), layer((8, 1), 128)
SHARED: Final = (
    LOCAL,
    GLOBAL,
    layer((8, 2), 64, window=30, scale=0.3),
    layer((8, 2), 64, window=30, keys_of=2),
    layer((8, 1), 128, keys_of=1, soft_cap=2.0),
)
"""As Gemma 4 and 3n have them: layers of two kinds, the last of which read the keys of earlier ones."""


def mixed_pair(**fields: Any) -> tuple[AttentionBackend, ReferenceAttention]:
    shape = CacheShape(layers=SHARED, num_blocks=BLOCKS, block_size=16, **{"cache_dtype": torch.float32} | fields)
    return cpu_attention(shape), ReferenceAttention(shape, compute_dtype=torch.float64)


def run_layers(backend: AttentionBackend, sequences: list[tuple[int, int]]) -> list[torch.Tensor]:
    batch = make_batch(sequences)
    found = []
    for number, kind in enumerate(SHARED):
        heads, size = (kind.num_heads, kind.num_kv_heads), kind.head_dim
        rotary = make_rotary(size, norms="single", value_norm=True, heads=heads)
        width = (heads[0] if kind.keys_of is not None else heads[0] + 2 * heads[1]) * size
        qkv = random(len(batch.positions), width, seed=number)
        query = backend.rotate_and_write(number, qkv, rotary, batch)
        found += [query, backend.attend(number, query, batch)]
    return found


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_layers_that_differ_and_share(cache: torch.dtype) -> None:
    """Prompts of few tokens and of many."""
    backends = mixed_pair(cache_dtype=cache)
    assert isinstance(backends[0], MixedAttention)
    for sequences in ([(0, 9), (0, 2)], [(0, 60), (0, 3)]):
        for actual, expected in zip(*(run_layers(backend, sequences) for backend in backends), strict=True):
            tolerance = 3e-6 if cache == torch.float32 else 5e-2
            torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    stored = sum(kind.numbers_per_token for kind in SHARED) * BLOCKS * 16
    scales = BLOCKS * 16 * 2 * (2 + 1 + 2) * 2 if cache in LARGEST else 0
    assert backends[0].cache_bytes() == backends[1].cache_bytes() == stored * cache.itemsize + scales


def test_copied_blocks_are_whole_in_layers_of_all_kinds() -> None:
    backends = mixed_pair()
    written = make_batch([(0, 20)])
    for backend in backends:
        before = run_layers(backend, [(0, 20)])[-1]
        sources = written.block_tables[0].tolist()
        targets = [block for block in range(BLOCKS) if block not in sources][: len(sources)]
        backend.copy_blocks(list(zip(sources, targets, strict=True)))
        copied = make_batch([(0, 20)])
        copied.block_tables = torch.tensor([targets], dtype=torch.int32)
        query = backend.rotate_and_write(4, random(20, 8 * 128, seed=4), make_rotary(128, norms="single"), written)
        assert torch.equal(backend.attend(4, query, copied), before)
