"""Every family in few bits: checkpoints as they are stored, weights rounded as they are loaded, keys and values; with
adapters on all linears.

Weights and keys have few bits in turn. In both at once the 16 bits that kernels of integers keep of an activation move
some keys across the border between two steps, which hides what either does.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import torch

from .few_bits import (
    CACHES,
    FORMATS,
    Answers,
    Tiny,
    codes_and_scale,
    expected,
    in_eight_bits,
    make_tiny,
    rounded,
    served,
    store,
)
from .parity import SHOWN, Shown
from .tiny import TINY

WEIGHTS_ERROR: Final = 5e-3
"""Of a log-probability: weights are the same, and kernels of integers keep 16 bits of each activation."""
MOVED: Final = 1 / 1000
"""Of keys and values, those that may be rounded to the other of two steps. Sums in another order differ by some 2^-20
of the largest number, and int8 has a border in every 1/127 of that: one in 8,000."""
KEYS_ERROR: Final = (12 * MOVED) ** 0.5
"""Of log-probabilities, as a part of what rounding changes in them, both the root of the mean square. A number that is
rounded differs by 1/12 of a step in the mean square, one that has moved by a whole step."""
HALF_STEP: Final[Mapping[str, tuple[float, float]]] = {
    "int8": (0.0, 1 / 254),
    "fp8_e4m3": (1 / 16, 2.0**-10 / 448),
    "fp8_e5m2": (1 / 8, 2.0**-17 / 57344),
}
"""Of a number, and of the largest of its head: 3 or 2 bits behind the first one, or those of the smallest numbers."""
BFLOAT16: Final = 1 + 2.0**-7
"""By how much a scale may be larger than it need be."""


def _doubled(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scale of the last head is read as twice what it is."""
    codes, scale = codes_and_scale(heads, dtype)
    scale[:, -1] *= 2
    return codes * scale


def _swapped(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A head is read with the scale of another."""
    codes, scale = codes_and_scale(heads, dtype)
    return codes * scale.flip(1)


def _cut(heads: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded toward zero."""
    codes, scale = codes_and_scale(heads, dtype)
    away = codes.abs() > (heads / scale).abs()
    lower = codes - codes.sign() if dtype == torch.int8 else (codes.to(dtype).view(torch.uint8) - 1).view(dtype).float()
    return torch.where(away & (codes != 0), lower, codes) * scale


FAULTS: Final[tuple[Callable[[torch.Tensor, torch.dtype], torch.Tensor], ...]] = (_doubled, _swapped, _cut)


@pytest.fixture(scope="module", params=TINY)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("name", FORMATS)
def test_a_stored_format_answers_as_its_floats(tiny: Tiny, tmp_path: Path, name: str) -> None:
    floats = store(tiny, name, tmp_path / "base")
    answers = served(tiny, tmp_path / "base")
    assert _largest(answers, expected(tiny, answers, floats)) < WEIGHTS_ERROR
    SHOWN.append(Shown(tiny.config.architecture, stored=name))


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
def test_weights_rounded_as_they_are_loaded_answer_as_what_they_stand_for(tiny: Tiny, name: str) -> None:
    answers, floats = served(tiny, tiny.base, quantization=name), rounded(tiny, name)
    assert _largest(answers, expected(tiny, answers, floats)) < WEIGHTS_ERROR
    assert _largest(answers, expected(tiny, answers)) > 2 * WEIGHTS_ERROR
    SHOWN.append(Shown(tiny.config.architecture, weights=name))


@pytest.mark.parametrize("name", CACHES)
def test_keys_and_values_are_those_of_eight_bits(tiny: Tiny, name: str) -> None:
    """And a fault of scales or rounding would show: each family is tried with each fault, and each dtype too."""
    answers, dtype = served(tiny, tiny.base, kv_cache_dtype=name), CACHES[name]
    right = expected(tiny, answers, rounding=partial(in_eight_bits, dtype=dtype))
    changed = _spread(right - expected(tiny, answers))
    assert _spread(right - answers.logprobs) < KEYS_ERROR * changed
    fault = FAULTS[(list(TINY).index(tiny.name) + list(CACHES).index(name)) % len(FAULTS)]
    wrong = expected(tiny, answers, rounding=partial(fault, dtype=dtype))
    assert _spread(wrong - answers.logprobs) > 2 * KEYS_ERROR * changed, fault
    SHOWN.append(Shown(tiny.config.architecture, keys=name))


@pytest.mark.parametrize("name", CACHES)
def test_eight_bits_are_at_most_half_a_step_away(name: str) -> None:
    """What the families are judged by is itself what the formats say."""
    heads = torch.randn(4, 2, 500, 64, generator=torch.Generator().manual_seed(0)) ** 3
    of_number, of_largest = HALF_STEP[name]
    bound = torch.maximum(heads.abs() * of_number, heads.abs().amax(-1, keepdim=True) * of_largest * BFLOAT16)
    error = (in_eight_bits(heads, CACHES[name]) - heads).abs()
    assert 0.98 < float((error / bound).max()) <= 1


def _largest(answers: Answers, logprobs: torch.Tensor) -> float:
    return float((answers.logprobs - logprobs).abs().max())


def _spread(differences: torch.Tensor) -> float:
    return float(differences.square().mean().sqrt())
