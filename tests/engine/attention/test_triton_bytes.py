"""The machine code that widens four bytes of the cache at a time to float16, executed here: all bytes."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from loraplex.engine.attention.kernels.cuda import launch, stored
from tests.quant.kernels import ptx

BYTES = np.arange(256, dtype=np.uint32)
TYPES = {launch.INTEGER8: torch.int8, launch.E4M3: torch.float8_e4m3fn, launch.E5M2: torch.float8_e5m2}
TYPES |= {launch.NATIVE_E4M3: torch.float8_e4m3fn}


def byte_of(place: int) -> npt.NDArray[np.uint32]:
    return (BYTES * (2 * place + 1) + 77 * place) & np.uint32(255)


@pytest.mark.parametrize("number", TYPES)
def test_four_bytes(number: int) -> None:
    """Subnormal numbers, both zeros, and infinities of E5M2; NaN, which the bytes of E4M3 have, only where the device
    converts them: nothing that is written has it, as its scale is NaN."""
    four = np.zeros(256, np.uint32)
    for place in range(4):
        four |= byte_of(place) << np.uint32(8 * place)
    found = ptx.run(stored.HALF_CODES[number], 2, four)
    values = [half for register in found for half in ptx.from_pair(register, torch.float16)]
    worth = launch.E4M3_WORTH if number == launch.E4M3 else 1.0
    for place in range(4):
        wanted = torch.from_numpy(byte_of(place).astype(np.uint8)).view(TYPES[number]).double().numpy()
        is_compared = ~np.isnan(wanted) | (number != launch.E4M3)
        assert np.array_equal((values[place] * worth)[is_compared], wanted[is_compared], equal_nan=True)
