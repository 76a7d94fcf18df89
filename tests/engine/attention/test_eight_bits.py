"""Keys and values of 8 bits: the bits that torch gives, and attention over them against float64."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from loraplex.engine.attention.backend import Rotary
from loraplex.engine.attention.cpu import CpuAttention
from loraplex.engine.attention.eight_bits import LARGEST, dequantize, quantize
from loraplex.engine.attention.kernels.paged import TILE
from loraplex.engine.kernels.arrays import as_array
from loraplex.engine.kernels.vector import load, store

from .shapes import alike
from .test_cpu import BLOCKS, MIXED, fill, make_backends, make_batch, random

every_dtype = pytest.mark.parametrize("dtype", LARGEST, ids=str)
ERROR = {torch.int8: 0.01, torch.float8_e4m3fn: 0.035, torch.float8_e5m2: 0.07}
"""Of attention over random keys and values, relative, root of the mean square: half a step of 127, of 8 and of 4."""
UNIT = {torch.int8: 1.0, torch.float8_e4m3fn: 256.0, torch.float8_e5m2: 1.0}
"""By what the kernels take the stored numbers for less; their scales are larger by as much."""
HEADS = (14, 2)
NEEDLE_SCORE = 13.0
"""Of an ordinary key about 1: one weighs four times as much as 64k others, so that losing theirs shows."""
HAY = 1.0
"""What ordinary values have in common: around zero they would cancel out, and nobody could tell that some were lost."""


@njit
def convert(source: Any, target: Any) -> None:
    for at in range(0, source.size, 16):
        store(target, at, load(source, at))


def through_the_kernel(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    stored = torch.zeros(values.shape, dtype=dtype)
    convert(as_array(values), as_array(stored))
    return stored


def interesting_floats() -> torch.Tensor:
    """Every bfloat16 and its neighbours among the float32: every tie, subnormal and carry of a float8 is there."""
    high = torch.arange(1 << 16, dtype=torch.int32) << 16
    values = torch.cat([high + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(torch.float32)
    values = values[values.isfinite()]
    return values[: len(values) // 16 * 16]


@every_dtype
def test_rounding_is_that_of_torch_and_saturates(dtype: torch.dtype) -> None:
    values = interesting_floats()
    bounded = values.clamp(-LARGEST[dtype], LARGEST[dtype])
    expected = bounded.round().to(dtype) if dtype is torch.int8 else bounded.to(dtype)
    scaled = values / UNIT[dtype]
    kept = scaled * UNIT[dtype] == values
    assert kept.float().mean() > 0.95
    assert torch.equal(through_the_kernel(scaled, dtype).view(torch.uint8)[kept], expected.view(torch.uint8)[kept])


@every_dtype
def test_every_stored_number_is_read_exactly(dtype: torch.dtype) -> None:
    stored = torch.arange(256, dtype=torch.uint8).view(dtype)
    read = torch.zeros(256)
    convert(as_array(stored), as_array(read))
    finite = stored.float().isfinite()
    assert finite.sum() >= 248
    assert torch.equal(read[finite] * UNIT[dtype], stored.float()[finite])


def stored_heads(cpu: CpuAttention, slots: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What layer 0 of the cache holds: bits and scales of keys and values, [2, T, G, D] and [2, T, G, 1]."""
    arguments = cpu.arguments(make_batch([(0, 1)]))
    key, value = (torch.from_numpy(cache[0].view(np.uint8)) for cache in (arguments.key, arguments.value))
    scales = torch.from_numpy(arguments.scales[0]).view(torch.bfloat16).float()
    block_size = key.shape[2] * TILE
    block, tile, lane = slots // block_size, slots % block_size // TILE, slots % TILE
    bits = torch.stack((key[block, :, tile, :, lane], value[block, :, tile, lane]))[..., :head_dim]
    return bits, torch.stack([scales[block, :, tile, place, lane] for place in range(2)])[..., None]


@pytest.mark.parametrize("head_dim", [6, 64])
@every_dtype
def test_a_write_stores_the_bits_of_torch(dtype: torch.dtype, head_dim: int) -> None:
    cpu, _ = make_backends((14, 2), head_dim, cache_dtype=dtype, block_size=32)
    batch = make_batch([(0, 70), (0, 3)], block_size=32)
    heads = random(2, 73, 2, head_dim) * torch.logspace(-30, 30, 73)[:, None, None]
    heads[:, 5], heads[:, 6, 0, 1] = 0.0, float("nan")
    heads[:, 7, 1, 0], heads[:, 8] = float("inf"), 1e-35
    cpu.write(0, *heads, batch)
    bits, scales = stored_heads(cpu, batch.slot_mapping, head_dim)
    expected, expected_scales = quantize(heads, dtype)
    finite = expected_scales.isfinite()
    assert (~finite).sum() == 4 and torch.equal(scales.isfinite(), finite)
    assert torch.equal(scales[finite] / UNIT[dtype], expected_scales[finite])
    assert torch.equal(bits * finite, expected.view(torch.uint8) * finite)


@every_dtype
def test_a_scale_fits_its_head_and_no_more(dtype: torch.dtype) -> None:
    heads = random(1000, 64)
    stored, scales = quantize(heads, dtype)
    used = stored.float().abs().amax(dim=-1) / LARGEST[dtype]
    assert used.min() > 0.87 and used.max() == 1
    step = 1 / 127 if dtype is torch.int8 else torch.finfo(dtype).eps
    error = (dequantize(stored, scales, torch.float32) - heads).abs() / heads.abs().amax(dim=-1, keepdim=True)
    assert error.max() <= 0.51 * step


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("head_dim", [56, 64])
@every_dtype
def test_nothing_is_lost_after_storing(dtype: torch.dtype, head_dim: int, window: int | None) -> None:
    """As close to float64 over the same stored bits as a float32 cache is to its own."""
    backends = make_backends(HEADS, head_dim, window, cache_dtype=dtype)
    batch = fill(backends, MIXED, kv_heads=2, head_dim=head_dim)
    query = random(len(batch.positions), 14, head_dim)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, atol=3e-6, rtol=1e-5)
    assert torch.equal(backends[0].attend(0, query, batch), actual)


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).double().norm() / expected.double().norm())


@every_dtype
def test_the_error_of_storing_is_bounded(dtype: torch.dtype) -> None:
    (cpu, _), (_, exact) = make_backends(HEADS, cache_dtype=dtype), make_backends(HEADS)
    batch = fill((cpu, exact), MIXED, kv_heads=2, head_dim=64)
    query = random(len(batch.positions), 14, 64)
    error = relative(cpu.attend(0, query, batch), exact.attend(0, query, batch))
    assert ERROR[dtype] / 3 < error < ERROR[dtype]


def needle_error(dtype: torch.dtype, length: int) -> float:
    """Of finding, at eight places of a context, the value whose key is the query's own: by a decode, whose keys are
    cut into pieces that are merged, and by the last of two prompt tokens, which goes over all keys by itself."""
    cpu = CpuAttention(alike(HEADS, 64, block_size=32, num_blocks=length // 32, cache_dtype=dtype))
    everything = make_batch([(0, length)], block_size=32, blocks=length // 32)
    key, value, query = random(length, 2, 64, seed=2), HAY + random(length, 2, 64, seed=3), random(8, 14, 64, seed=4)
    places = torch.arange(1, 9) * length // 9
    needles = query.view(8, 2, 7, 64)[:, :, 0]
    key[places] = needles * (NEEDLE_SCORE / 0.125 / needles.square().sum(dim=-1, keepdim=True))
    query.view(8, 2, 7, 64)[:] = needles[:, :, None]
    cpu.write(0, key, value, everything)
    answers = []
    for tokens in (1, 2):
        batch = make_batch([(length - tokens, tokens)] * 8, block_size=32, blocks=length // 4)
        batch.block_tables = everything.block_tables.expand(8, -1).contiguous()
        answers.append(cpu.attend(0, query.repeat_interleave(tokens, 0), batch)[tokens - 1 :: tokens].double())
    scores = torch.einsum("qgrd,sgd->qgrs", query.view(8, 2, 7, 64).double(), key.double()) * 0.125
    exact = torch.einsum("qgrs,sgd->qgrd", scores.softmax(dim=-1), value.double()).reshape(8, 14, 64)
    needle_values = value[places].repeat_interleave(7, dim=1).double()
    assert all(torch.cosine_similarity(found, needle_values, dim=-1).min() > 0.9 for found in answers)
    return max(relative(found, exact) for found in answers)


@every_dtype
def test_a_needle_is_found_in_a_long_context_as_in_a_short_one(dtype: torch.dtype) -> None:
    assert needle_error(dtype, 1 << 16) < 1.2 * needle_error(dtype, 1 << 12)


@every_dtype
def test_blocks_are_copied_with_their_scales(dtype: torch.dtype) -> None:
    backends = make_backends(HEADS, cache_dtype=dtype)
    batch = fill(backends, [(20, 1)], kv_heads=2, head_dim=64)
    sources = batch.block_tables[0].tolist()
    targets = [block for block in range(BLOCKS) if block not in sources][:2]
    copied = make_batch([(20, 1)])
    copied.block_tables = torch.tensor([targets], dtype=torch.int32)
    query = random(1, 14, 64)
    for backend in backends:
        before = backend.attend(0, query, batch)
        backend.copy_blocks(list(zip(sources, targets, strict=True)))
        assert torch.equal(backend.attend(0, query, copied), before) and before.any()


def test_what_lies_behind_a_sequence_is_never_read() -> None:
    cpu, _ = make_backends(HEADS, cache_dtype=torch.float8_e4m3fn)
    cpu.write(0, *(torch.full((BLOCKS * 16, 2, 64), float("nan")) for _ in range(2)), make_batch([(0, BLOCKS * 16)]))
    batch = fill((cpu,), [(20, 1), (20, 9)], kv_heads=2, head_dim=64)
    assert cpu.attend(0, random(10, 14, 64), batch).isfinite().all()


def test_numbers_that_are_none_are_seen_by_their_readers_alone() -> None:
    cpu, _ = make_backends(HEADS, cache_dtype=torch.float8_e4m3fn)
    key, value = random(2, 40, 2, 64)
    key[:20], value[20, 0, 3] = float("nan"), float("inf")
    batch = make_batch([(0, 20), (0, 20), (0, 20)])
    key, value = torch.cat((key, random(20, 2, 64))), torch.cat((value, random(20, 2, 64)))
    value[45] = 1e-42
    cpu.write(0, key, value, batch)
    answers = cpu.attend(0, random(60, 14, 64), batch)
    assert answers[:20].isnan().all() and not answers[20:40, :7].isfinite().any()
    assert answers[20:40, 7:].isfinite().all() and answers[40:].isfinite().all()


@every_dtype
def test_rotating_writes_what_rotated_keys_write(dtype: torch.dtype) -> None:
    """Few tokens by one thread, many by all: the same bits."""
    rotary = Rotary(random(40, 32).cos(), random(40, 32).sin(), random(64, seed=5), random(64, seed=6))
    qkv = random(40, 18 * 64)
    many, few = (make_backends(HEADS, cache_dtype=dtype)[0] for _ in range(2))
    many.rotate_and_write(0, qkv, rotary, make_batch([(0, 40)]))
    for first, last in itertools.pairwise([0, 1, 15, 30, 40]):
        part = make_batch([(0, 40)])
        part.positions, part.slot_mapping = part.positions[first:last], part.slot_mapping[first:last]
        few.rotate_and_write(0, qkv[first:last], rotary, part)
    slots = make_batch([(0, 40)]).slot_mapping
    for one, other in zip(stored_heads(many, slots, 64), stored_heads(few, slots, 64), strict=True):
        assert torch.equal(one, other) and one.any()


def test_scales_take_two_bytes_of_each_key_and_value() -> None:
    cpu, reference = make_backends(HEADS, cache_dtype=torch.int8)
    wide, _ = make_backends(HEADS, cache_dtype=torch.bfloat16)
    assert cpu.cache_bytes() == reference.cache_bytes() == 2 * 2 * BLOCKS * 16 * 2 * (64 + 2)
    assert wide.cache_bytes() / cpu.cache_bytes() > 1.9
