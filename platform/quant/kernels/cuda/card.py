"""What a GPU has, which tiles and the number of programs follow from. No triton is imported.

    architecture   shared memory of a program   matrix units of 16 bits
    sm_80, sm_87   163 KB                       mma.sync, operands in registers
    sm_86, sm_89   99 KB                        mma.sync
    sm_90          227 KB                       wgmma, operands in shared memory
    sm_100, 103    227 KB                       tcgen05, operands in shared memory
    sm_120, 121    99 KB                        mma.sync

Kernels and their choice of tiles ask for nothing else of a GPU, and never for its name.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch

REGISTERS: Final = 64 << 10
"""Of one multiprocessor, of every architecture."""
MOST_REGISTERS: Final = 248
"""Of a thread, in steps of eight."""
OWN_BYTES: Final = 1 << 10
"""Of shared memory, that each program takes besides its own."""


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    capability: tuple[int, int]
    shared_memory: int
    """Bytes that one program may have at most."""
    processors: int
    """Multiprocessors."""

    @property
    def can_chain(self) -> bool:
        """Whether a kernel may begin while the one before still runs (chain.py)."""
        return self.capability >= (9, 0)

    @property
    def has_float8(self) -> bool:
        """Whether it converts and multiplies float8_e4m3fn by itself."""
        return self.capability >= (8, 9)

    @property
    def multiplies_shared(self) -> bool:
        """Whether the matrix units read their operands from shared memory, which leaves registers for larger tiles."""
        return self.capability[0] in (9, 10)

    def resident(self, shared: int) -> int:
        """Programs of `shared` bytes for which a multiprocessor has shared memory; 0: not even one starts."""
        return (self.shared_memory + OWN_BYTES) // (shared + OWN_BYTES)


INTERPRETER: Final = Card("triton's interpreter", (0, 0), 227 << 10, 4)
"""Stands for a GPU where kernels run on a CPU: so few multiprocessors that small tests share work among programs."""


def find_card(device: torch.device) -> Card:
    return _read_card(device) if device.type == "cuda" else INTERPRETER


@cache
def _read_card(device: torch.device) -> Card:
    found = torch.cuda.get_device_properties(device)
    shared = found.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return Card(found.name, (found.major, found.minor), shared, found.multi_processor_count)


def limit_registers(programs: int, warps: int) -> int:
    """Registers of a thread with which `programs` programs of `warps` warps fit a multiprocessor."""
    return min(MOST_REGISTERS, REGISTERS // (32 * warps * programs) // 8 * 8)
