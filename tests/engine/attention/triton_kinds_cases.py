"""Every kind of attention of the CUDA backend in triton's interpreter, as `triton_cases.py` has the rest."""

import itertools
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from loraplex.engine.attention.backend import AttentionBackend, CacheShape
from loraplex.engine.attention.cuda import MixedCudaAttention, cuda_attention
from loraplex.engine.attention.eight_bits import LARGEST
from loraplex.engine.attention.kernels.cuda import launch
from loraplex.engine.attention.reference import ReferenceAttention
from loraplex.engine.batch import single_tokens
from tests.cards import CARDS, use_card
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .paged_cases import TOLERANCE, fill_both, make_backends, widen_table
from .test_cpu import BLOCKS, make_batch, random
from .test_kinds import KINDS, ROTARIES, SHARED, make_rotary, run_layers

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]

FP32, BF16, E4M3, INT8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8
MIXED: Final = [(0, 1), (40, 5), (0, 17), (270, 9)]
LONG: Final = [(0, 1), (255, 1), (512, 1), (700, 1)]
PAIRS: Final = [*[(name,) for name in KINDS], *itertools.combinations(KINDS, 2)]


@pytest.mark.parametrize("cache", [FP32, E4M3], ids=str)
@pytest.mark.parametrize("kinds", PAIRS, ids="+".join)
def test_kinds_alone_and_in_pairs(kinds: tuple[str, ...], cache: torch.dtype) -> None:
    """Prompts and chunks of prompts, and decodes, whose keys are shared out."""
    fields = {key: value for kind in kinds for key, value in KINDS[kind].items()}
    backends = make_backends((4, 2), cache_dtype=cache, **fields)
    sinks = random(4, seed=7) if "sinks" in kinds else None
    for sequences, blocks in ((MIXED, 0), (LONG, BLOCKS)):
        batch = fill_both(*backends, sequences)
        batch = widen_table(batch, blocks) if blocks else batch
        query = random(len(batch.positions), 4, 64) * 3
        actual, expected = (backend.attend(0, query, batch, sinks) for backend in backends)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_one_of_many_programs_has_the_sinks(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "count_splits", lambda *shape: splits)
    for window in (None, 300):
        backends = make_backends((2, 1), window=window, sinks=True)
        batch = fill_both(*backends, [(500, 7), (0, 2), (700, 1)])
        query, sinks = random(len(batch.positions), 2, 64), random(2, seed=7)
        actual, expected = (backend.attend(0, query, batch, sinks) for backend in backends)
        torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("sequences", [LONG, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize(
    ("head_dim", "cache", "dtype"),
    [(512, FP32, FP32), (512, BF16, BF16), (512, E4M3, BF16), (320, INT8, FP32), (256, E4M3, FP32), (256, INT8, BF16)],
    ids=str,
)
def test_large_heads(head_dim: int, cache: torch.dtype, dtype: torch.dtype, sequences: list[tuple[int, int]]) -> None:
    backends = make_backends((4, 1), head_dim, cache_dtype=cache, soft_cap=5.0)
    batch = fill_both(*backends, sequences)
    query = random(len(batch.positions), 4, head_dim, dtype=dtype)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("kind", ROTARIES)
def test_heads_before_attention(kind: str, head_dim: int) -> None:
    """80 is no power of two; of 14 query heads, a program has eight."""
    backends = make_backends((14, 2), head_dim)
    rotary, batch = make_rotary(head_dim, **ROTARIES[kind]), make_batch([(0, 3), (50, 1)])
    qkv = random(4, 18 * head_dim)
    actual, expected = (backend.rotate_and_write(1, qkv, rotary, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)
    for stored, place in ((backends[0]._key, 0), (backends[0]._value, 1)):
        lines = stored[1].transpose(1, 2).flatten(0, 1)
        wanted = backends[1]._caches[1][place, batch.slot_mapping]
        torch.testing.assert_close(lines[batch.slot_mapping], wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("norms", ["single", "whole"])
def test_adapters_bring_norms_of_their_own(norms: str) -> None:
    """The first that of queries, the second both, the last token's adapter none; of the model's second layer."""
    cuda, reference = make_backends((14, 2))
    rotary, batch = make_rotary(64, turned=32, norms=norms), make_batch([(0, 3), (50, 1)])
    assert rotary.query_norm is not None and rotary.key_norm is not None
    sizes = len(rotary.query_norm), len(rotary.key_norm)
    floats, qkv = random(20 * max(sizes), seed=9), random(4, 18 * 64)
    vectors = torch.tensor([[-1, 16, -1], [-1, 5 * max(sizes), 10 * max(sizes)], [-1, -1, -1]])
    slots = torch.tensor([0, 1, 2, -1], dtype=torch.int32)
    own = launch.OwnNorms(slots, floats, vectors, layer=1, query_kind=1, key_kind=2)
    query = torch.empty(4, 14, 64)
    turn = launch.Turn(rotary.cos, rotary.sin, rotary.query_norm, rotary.key_norm, rotary.eps)
    cuda._write(1, query, qkv.view(4, 18, 64), turn, batch, own)
    for token, pages in enumerate([*vectors[:, 1:].tolist(), [-1, -1]]):
        brought = [floats[page + 2 * size :][:size] for page, size in zip(pages, sizes, strict=True)]
        weights = [old if page < 0 else new for page, old, new in
                   zip(pages, (rotary.query_norm, rotary.key_norm), brought, strict=True)]  # fmt: skip
        changed = replace(rotary, query_norm=weights[0], key_norm=weights[1])
        single = single_tokens(batch, torch.tensor([token]))
        expected = reference.rotate_and_write(1, qkv[[token]], changed, single)[0]
        torch.testing.assert_close(query[token], expected, rtol=3e-6, atol=3e-6)
        stored = cuda._key[1].transpose(1, 2).flatten(0, 1)[batch.slot_mapping[token]]
        wanted = reference._caches[1][0, batch.slot_mapping[token]]
        torch.testing.assert_close(stored, wanted, rtol=3e-6, atol=3e-6)


def mixed_pair(**fields: Any) -> tuple[AttentionBackend, ReferenceAttention]:
    shape = CacheShape(layers=SHARED, num_blocks=BLOCKS, block_size=16, **{"cache_dtype": FP32} | fields)
    backend = cuda_attention(shape, max_tokens=64, device="cpu")
    assert isinstance(backend, MixedCudaAttention)
    return backend, ReferenceAttention(shape, compute_dtype=torch.float64)


@pytest.mark.parametrize("cache", [FP32, BF16, *LARGEST], ids=str)
def test_layers_that_differ_and_share(cache: torch.dtype) -> None:
    backends = mixed_pair(cache_dtype=cache)
    for actual, expected in zip(*(run_layers(backend, [(0, 9), (0, 2)]) for backend in backends), strict=True):
        tolerance = 3e-6 if cache == FP32 else 5e-2
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    assert backends[0].cache_bytes() == backends[1].cache_bytes()


def test_static_scales_of_layers_that_differ() -> None:
    scales = [torch.full((2, kind.num_kv_heads), 2 / LARGEST[E4M3] * (1 + place)) for place, kind in enumerate(SHARED)]
    backends = mixed_pair(cache_dtype=E4M3, static_scales=scales)
    for actual, expected in zip(*(run_layers(backend, [(0, 9), (0, 2)]) for backend in backends), strict=True):
        torch.testing.assert_close(actual, expected, atol=5e-2, rtol=5e-2)


def test_cuts_of_layers_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step is another one where the keys of any layer are cut in another way."""
    use_card(monkeypatch, CARDS[90])
    shape = CacheShape(layers=SHARED, num_blocks=BLOCKS, block_size=16, cache_dtype=FP32)
    backend = cuda_attention(shape, max_tokens=64, device="cpu")
    found = {backend.cuts(1, 1, blocks, False, False) for blocks in (1, 20, 40)}
    found |= {backend.cuts(64, 64, 40, False, mixed) for mixed in (False, True)}
    assert len(found) >= 3 and 0 in found
