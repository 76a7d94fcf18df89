"""The CUDA attention over keys and values of 8 bits, in triton's interpreter, as `triton_cases.py` has the rest."""

import numpy as np
import pytest
import torch

from loraplex.engine.attention.cuda import CudaAttention
from loraplex.engine.attention.eight_bits import LARGEST, quantize
from loraplex.engine.attention.kernels.cuda import launch
from tests.cards import CARDS, use_card
from tests.triton_interpreter import one_patch_a_module, poisoned_memory, rounding

from .paged_cases import bits, fill_both, make_backends, widen_table
from .shapes import alike
from .test_cpu import make_batch, random
from .test_eight_bits import HAY, NEEDLE_SCORE, interesting_floats

__all__ = ["one_patch_a_module", "poisoned_memory", "rounding"]

NAN = float("nan")
E4M3, INT8 = torch.float8_e4m3fn, torch.int8
MIXED = [(0, 1), (40, 5), (0, 17), (270, 9)]
LONG = [(0, 1), (255, 1), (512, 1), (700, 1)]
every_eight_bits = pytest.mark.parametrize("dtype", LARGEST, ids=str)


@every_eight_bits
@pytest.mark.parametrize("head_dim", [64, 128])
def test_decodes_hold_numbers_of_any_size(head_dim: int, dtype: torch.dtype) -> None:
    """Queries too large and too small for float16, heads of zeros, values of scales from 1e-26 to 1e24: of each
    sequence alike, growing from key to key, and shrinking."""
    backends = make_backends((8, 2), head_dim, cache_dtype=dtype)
    exponents = [torch.full((100,), exponent) for exponent in (-24.0, 0.0, 24.0)]
    exponents += [torch.linspace(-20, 20, 150), torch.linspace(20, -20, 150), torch.full((30,), -60.0)]
    sequences = [(len(exponent) - 1, 1) for exponent in exponents]
    batch = fill_both(*backends, sequences, sizes=10.0 ** torch.cat(exponents))
    query = random(len(sequences), 8, head_dim) * 10.0 ** torch.tensor([-30, -6, 0, 0.5, 1, 5, 6, -45])[:, None]
    query = query.bfloat16()
    actual, expected = (backend.attend(0, query, batch).double() for backend in backends)
    largest = expected.abs().amax(2, keepdim=True)
    torch.testing.assert_close(
        actual / largest.clamp(min=1e-40), expected / largest.clamp(min=1e-40), rtol=0, atol=0.01
    )
    assert largest[:5].gt(0).all()


@every_eight_bits
def test_static_scales_with_splits(dtype: torch.dtype) -> None:
    scales = torch.tensor([[[0.9, 1.7], [1.3, 2.1]], [[0.4, 2.5], [1.1, 0.8]]]) / LARGEST[dtype]
    backends = make_backends((6, 2), cache_dtype=dtype, static_scales=scales)
    batch = widen_table(fill_both(*backends, LONG), 100)
    query = random(len(batch.positions), 6, 64)
    actual, expected = (backend.attend(0, query, batch) for backend in backends)
    torch.testing.assert_close(actual, expected, rtol=3e-6, atol=3e-6)


def test_a_device_that_converts_float8_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = make_backends((4, 1), cache_dtype=E4M3)
    batch = fill_both(*backends, MIXED)
    query = random(len(batch.positions), 4, 64)
    bytes_decoded = backends[0].attend(0, query, batch)
    use_card(monkeypatch, CARDS[89])
    torch.testing.assert_close(backends[0].attend(0, query, batch), bytes_decoded, rtol=1e-6, atol=1e-6)


@every_eight_bits
def test_rounding_is_that_of_torch_and_saturates(dtype: torch.dtype) -> None:
    """Of every bfloat16 and its neighbours, by a static scale of one."""
    values = interesting_floats()
    pairs = torch.nn.functional.pad(values, (0, -len(values) % (64 * 128))).view(-1, 2, 64, 64)
    cuda, _ = make_backends((64, 64), cache_dtype=dtype, static_scales=torch.ones(2, 2, 64))
    batch = make_batch([(0, len(pairs))])
    cuda.write(0, pairs[:, 0], pairs[:, 1], batch)
    for place, stored in enumerate((cuda._key, cuda._value)):
        bounded = pairs[:, place].clamp(-LARGEST[dtype], LARGEST[dtype])
        wanted = bounded.round().to(dtype) if dtype is INT8 else bounded.to(dtype)
        lines = stored[0].transpose(1, 2).flatten(0, 1)[batch.slot_mapping]
        assert torch.equal(bits(lines), bits(wanted))


@every_eight_bits
def test_clipped_numbers_are_counted_as_numpy_does(dtype: torch.dtype) -> None:
    scales = torch.tensor([[[0.9, 1.7], [1.3, 2.1]], [[0.4, 2.5], [1.1, 0.8]]]) / LARGEST[dtype]
    cuda, _ = make_backends((2, 2), cache_dtype=dtype, static_scales=scales)
    heads = random(2, 23, 2, 64) * torch.logspace(-2, 2, 23)[:, None, None]
    heads[0, 6, 0, 1], heads[1, 7, 1, 0] = NAN, float("-inf")
    batch = make_batch([(0, 23)])
    batch.slot_mapping[20] = -1
    for _ in range(2):
        cuda.write(1, *heads, batch)
    scaled = heads.numpy() / scales[1].numpy()[:, None, :, None]
    expected = (np.abs(scaled) > LARGEST[dtype]).sum(axis=(0, 2, 3))
    expected[20] = 0
    assert 0 < np.count_nonzero(expected) < 22 and batch.clipped is not None
    assert not batch.clipped[0].any(), "a layer that was not written"
    found, broken = batch.clipped[1].numpy(), ~np.isfinite(heads.numpy()).all(axis=(0, 2, 3))
    assert (found[broken] < -(1 << 39)).all() and np.array_equal(found[~broken], expected[~broken])


@every_eight_bits
def test_numbers_that_are_none_are_seen_by_their_readers_alone(dtype: torch.dtype) -> None:
    cuda, _ = make_backends((2, 2), cache_dtype=dtype)
    key, value = random(2, 12, 2, 64)
    key[2], value[6, 0, 3] = NAN, float("inf")
    batch = make_batch([(0, 4), (0, 4), (0, 4)])
    cuda.write(0, key, value, batch)
    answers = cuda.attend(0, random(12, 2, 64), batch)
    assert answers[2:4].isnan().all() and not answers[6:8, 0].isfinite().any()
    assert answers[4:8, 1].isfinite().all() and answers[8:].isfinite().all()
    assert batch.clipped is None


def needle_error(length: int) -> float:
    """Of finding, by the eight heads of one token, eight values of a context whose keys are the heads' own."""
    key, value, query = random(length, 1, 64, seed=2), HAY + random(length, 1, 64, seed=3), random(1, 8, 64, seed=4)
    places = torch.arange(1, 9) * length // 9
    key[places, 0] = query[0] * (NEEDLE_SCORE / 0.125 / query[0].square().sum(dim=-1, keepdim=True))
    shape = alike((8, 1), 64, block_size=32, num_blocks=length // 32, cache_dtype=E4M3)
    cuda = CudaAttention(shape, max_tokens=1, device="cpu")
    batch = make_batch([(length - 1, 1)], block_size=32, blocks=length // 32)
    for part, (cache, heads) in enumerate(((cuda._key, key), (cuda._value, value))):
        stored, scales = quantize(heads, E4M3)
        bits(cache)[0, batch.block_tables[0].long(), 0] = bits(stored).view(-1, 32, 64)
        cuda._scales[0, batch.block_tables[0].long(), 0, :, part] = scales.view(-1, 32).bfloat16()
    found = cuda.attend(0, query.bfloat16(), batch)[0].double()
    weights = (query[0].double() @ key[:, 0].double().T * 0.125).softmax(dim=-1)
    exact = weights @ value[:, 0].double()
    assert torch.cosine_similarity(found, value[places, 0].double(), dim=-1).min() > 0.9
    return float((found - exact).norm() / exact.norm())


def test_a_needle_is_found_in_a_long_context_as_in_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rests in 8 bits is widened before each product, and the sums of one program over all keys do not lose it."""
    monkeypatch.setattr(launch, "count_spare", lambda *shape: 0)
    assert needle_error(1 << 16) < 1.2 * needle_error(1 << 12)
