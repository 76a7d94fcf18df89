"""What this process may use of the processor, whatever the processor has. Imports neither numba nor llvmlite."""

import ctypes
import functools
import platform
from typing import Final

ARCH_PRCTL: Final = 158
REQUEST_PERMISSION: Final = 0x1023
TILE_DATA: Final = 18


@functools.cache
def may_use_matrix_registers() -> bool:
    """Linux gives a process AMX's registers when it asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).

    Another kernel, or a container that denies the call, says no on the same processor.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0)
