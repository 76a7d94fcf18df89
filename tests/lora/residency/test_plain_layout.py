"""Pages are laid out with numba or, on machines without it, with numpy: the same bits."""

import numpy as np
import pytest

from loraplex.lora.kernels import layout
from loraplex.lora.residency import plain_layout

SPECIAL = [0x0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00000001, 0x3F808000, 0x3F818000, 0x3F807FFF]
"""Zeros, infinities, the largest, the least, halves between two bfloat16 numbers and just below one."""


@pytest.fixture
def bits() -> np.ndarray:
    found = np.random.default_rng(0).normal(size=(131, 8)).astype(np.float32).view(np.uint32)
    found.reshape(-1)[: len(SPECIAL)] = SPECIAL
    return found


def test_transposed(bits: np.ndarray) -> None:
    for source in (bits, bits.astype(np.uint16), bits[:, 2:5]):
        one, other = (np.empty(source.shape[::-1], source.dtype) for _ in range(2))
        layout.transpose(source, one)
        plain_layout.transpose(source, other)
        assert np.array_equal(one, other)


def test_narrowed(bits: np.ndarray) -> None:
    one, other = (np.empty(bits.shape[::-1], np.uint16) for _ in range(2))
    layout.transpose_to_bfloat16(bits, one)
    plain_layout.transpose_to_bfloat16(bits, other)
    assert np.array_equal(one, other)
    flat, again = (np.empty(bits.size, np.uint16) for _ in range(2))
    layout.to_bfloat16(bits.reshape(-1), flat)
    plain_layout.to_bfloat16(bits.reshape(-1), again)
    assert np.array_equal(flat, again)
