"""Keys and values of 8 bits under static scales: bits, attention, and counts of what is clipped."""

import itertools

import numpy as np
import pytest
import torch

from loraplex.engine.attention.backend import Rotary
from loraplex.engine.attention.cpu import CpuAttention
from loraplex.engine.attention.eight_bits import LARGEST
from loraplex.engine.attention.reference import ReferenceAttention
from loraplex.engine.batch import Batch

from .test_cpu import BLOCKS, MIXED, fill, make_backends, make_batch, random

every_dtype = pytest.mark.parametrize("dtype", LARGEST, ids=str)
HEADS = (14, 2)
TIGHT = torch.tensor([[[0.9, 1.7], [1.3, 2.1]], [[0.4, 2.5], [1.1, 0.8]]])
"""[L, 2, G]: the numbers at which keys and values begin to be clipped, well within what they are."""


def static_backends(dtype: torch.dtype, head_dim: int = 64) -> tuple[CpuAttention, ReferenceAttention]:
    return make_backends(HEADS, head_dim, cache_dtype=dtype, static_scales=TIGHT / LARGEST[dtype])


def clipped(batch: Batch) -> torch.Tensor:
    assert batch.clipped is not None
    return batch.clipped


@pytest.mark.parametrize("head_dim", [56, 64])
@every_dtype
def test_attention_reads_what_was_stored(dtype: torch.dtype, head_dim: int) -> None:
    """As close to float64 over the same saturated bits as with a scale for each token; sums of pieces among them."""
    backends = static_backends(dtype, head_dim)
    batch = fill(backends, MIXED, kv_heads=2, head_dim=head_dim)
    query = random(len(batch.positions), 14, head_dim)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=1e-5)


def stored(cpu: CpuAttention, batch: Batch, values: torch.Tensor) -> torch.Tensor:
    """Each token's value [T, G, D] as it counts: that which a query finds who sees that token alone."""
    alone = make_batch([(0, 1)] * len(values))
    alone.slot_mapping, alone.block_tables = batch.slot_mapping, (batch.slot_mapping // 16).int()[:, None]
    return cpu.attend(0, torch.zeros(len(values), 14, 64), alone).view(len(values), 2, 7, 64)[:, :, 0]


@every_dtype
def test_what_is_beyond_a_scale_becomes_its_largest_number(dtype: torch.dtype) -> None:
    """Of values alone in their blocks, which attention then returns; float64 says what they must be."""
    cpu, _ = static_backends(dtype)
    batch = make_batch([(0, 1)] * 40)
    values = random(40, 2, 64) * torch.logspace(-3, 4, 40)[:, None, None]
    cpu.write(0, random(40, 2, 64), values, batch)
    limits = TIGHT[0, 1].double()[:, None].expand(40, 2, 64)
    found, exact = stored(cpu, batch, values).double(), values.double()
    beyond = exact.abs() > limits
    assert 0.2 < beyond.double().mean() < 0.8
    torch.testing.assert_close(found[beyond], (exact.sign() * limits)[beyond], atol=0, rtol=1e-6)
    steps = limits / 127 if dtype is torch.int8 else float8_steps(exact, limits, dtype)
    assert ((found - exact).abs() <= steps / 2 * (1 + 1e-5))[~beyond].all()


def float8_steps(values: torch.Tensor, limits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """At most how far the neighbours of `values` are apart, where `limits` stands for the largest number."""
    kind = torch.finfo(dtype)
    return torch.maximum(values.abs(), limits / LARGEST[dtype] * kind.smallest_normal) * kind.eps


@pytest.mark.parametrize("head_dim", [56, 64])
@every_dtype
def test_counts_are_those_of_numpy(dtype: torch.dtype, head_dim: int) -> None:
    cpu, reference = static_backends(dtype, head_dim)
    heads = random(2, 73, 2, head_dim) * torch.logspace(-2, 2, 73)[:, None, None]
    heads[:, 5] = 0.0
    heads[0, 6, 0, 1], heads[1, 7, 1, 0] = float("nan"), float("-inf")
    batches = [make_batch([(0, 70), (0, 3)]) for _ in range(2)]
    for backend, batch in zip((cpu, reference), batches, strict=True):
        backend.write(1, *heads, batch)
    scales = TIGHT[1].numpy() / np.float32(LARGEST[dtype])
    scaled = heads.numpy() / scales[:, None, :, None]
    expected = (np.abs(scaled) > LARGEST[dtype]).sum(axis=(0, 2, 3))
    assert 0 < np.count_nonzero(expected) < 73
    broken = ~np.isfinite(heads.numpy()).all(axis=(0, 2, 3))
    assert broken.nonzero()[0].tolist() == [6, 7]
    for batch in batches:
        assert not clipped(batch)[0].any(), "a layer that was not written"
        found = clipped(batch)[1].numpy()
        assert (found[broken] < 0).all() and np.array_equal(found[~broken], expected[~broken])


@every_dtype
def test_clipping_in_other_layers_does_not_hide_what_is_not_finite(dtype: torch.dtype) -> None:
    for backend in static_backends(dtype):
        batch = make_batch([(0, 2)])
        heads = random(2, 2, 2, 64)
        backend.write(1, *(100 * heads), batch)
        heads[0, 1, 0, 1] = float("nan")
        backend.write(0, *heads, batch)
        totals = clipped(batch).sum(dim=0)
        assert totals[0] > 0 and totals[1] < 0


@every_dtype
def test_a_number_at_the_limit_is_not_clipped(dtype: torch.dtype) -> None:
    cpu, _ = make_backends(HEADS, cache_dtype=dtype, static_scales=torch.full((2, 2, 2), 0.25))
    largest = LARGEST[dtype] / 4
    key, value = torch.zeros(2, 3, 2, 64)
    key[0, 0, :4] = torch.tensor([largest, -largest, largest / 2, 0.0])
    key[1, 1, 63], value[1, 0, 0] = float(np.nextafter(np.float32(largest), np.float32(np.inf))), -2 * largest
    batch = make_batch([(0, 3)])
    cpu.write(0, key, value, batch)
    assert clipped(batch)[0].tolist() == [0, 2, 0]


@every_dtype
def test_rotating_counts_what_rotated_keys_count(dtype: torch.dtype) -> None:
    """Few tokens by one thread, many by all; written again, a token counts once."""
    rotary = Rotary(random(40, 32).cos(), random(40, 32).sin(), random(64, seed=5), random(64, seed=6))
    qkv = random(40, 18 * 64)
    many, reference = static_backends(dtype)
    batches = [make_batch([(0, 40)]) for _ in range(2)]
    for backend, batch in zip((many, reference), batches, strict=True):
        backend.rotate_and_write(0, qkv, rotary, batch)
    few = static_backends(dtype)[0]
    parts = []
    for first, last in itertools.pairwise([0, 1, 15, 30, 40]):
        part = make_batch([(0, 40)])
        part.positions, part.slot_mapping = part.positions[first:last], part.slot_mapping[first:last]
        for _ in range(2):
            few.rotate_and_write(0, qkv[first:last], rotary, part)
        parts.append(clipped(part)[0])
    assert torch.equal(torch.cat(parts), clipped(batches[0])[0]) and clipped(batches[0])[0].any()
    off = (clipped(batches[0])[0] - clipped(batches[1])[0]).abs()
    assert off.max() <= 1, "one number may lie at the limit, where float64 rounds it the other way"


@every_dtype
def test_no_scales_are_stored(dtype: torch.dtype) -> None:
    for backend in static_backends(dtype):
        assert backend.cache_bytes() == 2 * 2 * BLOCKS * 16 * 2 * 64


@every_dtype
def test_a_scale_of_its_own_never_counts(dtype: torch.dtype) -> None:
    cpu, _ = make_backends(HEADS, cache_dtype=dtype)
    batch = make_batch([(0, 20)])
    cpu.write(0, *(random(2, 20, 2, 64) * 1e6), batch)
    assert batch.clipped is None


@every_dtype
def test_the_largest_scales_make_static_ones_that_clip_nothing(dtype: torch.dtype) -> None:
    cpu, _ = make_backends(HEADS, cache_dtype=dtype)
    heads = random(2, 70, 2, 64) * torch.tensor([0.3, 5.0])[:, None]
    batch = make_batch([(0, 70)], blocks=BLOCKS - 1)
    batch.slot_mapping += 16
    for layer in range(2):
        cpu.write(layer, *(heads * (layer + 1)), batch)
    scales = torch.stack(list(cpu.take_largest_scales().values()))
    used = torch.stack([heads, heads * 2]).abs().amax(dim=(2, 4)) / LARGEST[dtype] / scales
    assert used.shape == (2, 2, 2) and used.max() <= 1 and used.min() > 0.99
    assert not any(found.any() for found in cpu.take_largest_scales().values())
    static, _ = make_backends(HEADS, cache_dtype=dtype, static_scales=scales)
    again = make_batch([(0, 70)])
    for layer in range(2):
        static.write(layer, *(heads * (layer + 1)), again)
    assert not clipped(again).any()
