"""Compiled functions called by address: with the arguments they take, and with no others."""

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from loraplex.quant.kernels.instructions.address import address_of, call, pointer
from loraplex.quant.kernels.instructions.vectors import put


@njit
def _store(place: int, value: int) -> None:
    if value < 0:
        raise ValueError("no value")
    put(place, np.float32(value))


@njit
def _store_twice(place: int, value: int) -> None:
    put(place, np.float32(2 * value))


@njit
def _answer(value: int) -> int:
    return value


@njit
def _by_address(function: int, value: int, place: np.ndarray) -> None:
    call(function, (place.ctypes.data, value))


def test_one_caller_calls_what_it_is_given() -> None:
    place = np.zeros(1, np.float32)
    _by_address(address_of(_store), 7, place)
    assert place[0] == 7
    _by_address(address_of(_store_twice), 7, place)
    assert place[0] == 14
    assert len(_by_address.signatures) == 1


def test_what_the_function_raises_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="no value"):
        _by_address(address_of(_store), -1, np.zeros(1, np.float32))


def test_other_types_do_not_compile() -> None:
    with pytest.raises(TypingError, match="integers of 64 bits"):
        _by_address(address_of(_store), 7.0, np.zeros(1, np.float32))


def test_a_function_with_a_result_has_no_address() -> None:
    with pytest.raises(TypeError, match="_answer has a result"):
        address_of(_answer)


def test_a_pointer_has_the_type_it_is_likened_to() -> None:
    @njit
    def first(address: int, like: np.ndarray) -> float:
        return pointer(address, like)[0]

    numbers = np.array([3.5], np.float32)
    assert first(numbers.ctypes.data, numbers) == 3.5
