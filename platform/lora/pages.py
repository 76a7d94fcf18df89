"""PageStore: the rank pages of all resident adapters, and the one static table through which kernels find them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from .arena import Arena
from .batch import KINDS, RANKS_PER_PAGE, PageTable
from .config_file import MAX_RANK
from .manifest import BaseSignature, ModuleLora
from .weights import Pages

DTYPE_NAMES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
ALIGNMENT_BYTES: Final = 128
"""A page begins on a cache line of any device."""


@dataclass(frozen=True, slots=True)
class Room:
    """One slot of the table and the pages that belong to it."""

    slot: int
    offsets: dict[str, list[int]]
    """kind -> where each of its pages begins, in elements of the arena."""


class PageStore:
    """Used by the engine thread alone, but for `fill`, which touches only a room no table entry points to."""

    def __init__(self, base: BaseSignature, memory: int, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._item_size = dtype.itemsize
        self._base = base
        self.dtype_name = DTYPE_NAMES[dtype]
        self._arena = Arena(memory // self._item_size, ALIGNMENT_BYTES // self._item_size)
        self._free_slots = list(reversed(range(slots)))
        self._slots = slots
        shape = (slots, len(KINDS))
        self.table = PageTable(
            arena=torch.empty(self._arena.size, dtype=dtype, device=device),
            offset=torch.zeros(*shape, MAX_RANK // RANKS_PER_PAGE, dtype=torch.int64, device=device),
            rank=torch.zeros(*shape, base.num_layers, dtype=torch.int32, device=device),
            scaling=torch.zeros(*shape, base.num_layers, dtype=torch.float32, device=device),
            shapes=base.kinds,
        )
        self._copy_stream = _side_stream(device) if device.type == "cuda" else None

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def capacity(self) -> int:
        """Bytes."""
        return self._arena.size * self._item_size

    @property
    def bytes_free(self) -> int:
        return self._arena.free * self._item_size

    def count_pages(self, modules: Sequence[ModuleLora]) -> dict[str, int]:
        """kind -> pages that an adapter of these modules takes."""
        ranks: dict[str, int] = {}
        for module in modules:
            ranks[module.kind] = max(module.rank, ranks.get(module.kind, 0))
        return {kind: -(-rank // RANKS_PER_PAGE) for kind, rank in ranks.items()}

    def count_bytes(self, pages: dict[str, int]) -> int:
        return (
            sum(count * self._arena.rounded(self._page_size(kind)) for kind, count in pages.items()) * self._item_size
        )

    def reserve(self, pages: dict[str, int]) -> Room | None:
        """A slot and room for these pages; None when either is lacking."""
        kinds = [kind for kind, count in pages.items() for _ in range(count)]
        offsets = self._arena.allocate_all(map(self._page_size, kinds)) if self._free_slots else None
        if offsets is None:
            return None
        room = Room(self._free_slots.pop(), {kind: [] for kind in pages})
        for kind, offset in zip(kinds, offsets, strict=True):
            room.offsets[kind].append(offset)
        return room

    def fill(self, room: Room, write: Callable[[Pages], None]) -> None:
        """Run `write` on the room's pages, on any thread; on return their bytes are on the device."""
        if self._copy_stream is None:
            write(self._host_pages(room, self.table.arena))
            return
        size = sum(self._page_size(kind) * len(offsets) for kind, offsets in room.offsets.items())
        staging = torch.empty(size, dtype=self.table.arena.dtype, pin_memory=True)
        packed = self._pack(room)
        write(self._host_pages(packed, staging))
        with torch.cuda.stream(self._copy_stream):
            for kind, offsets in room.offsets.items():
                for target, source in zip(offsets, packed.offsets[kind], strict=True):
                    page = slice(source, source + self._page_size(kind))
                    self.table.arena[target : target + self._page_size(kind)].copy_(staging[page], non_blocking=True)
        self._copy_stream.synchronize()

    def publish(self, room: Room, modules: Sequence[ModuleLora]) -> None:
        """Point the table at a filled room: from now on kernels may use its slot."""
        offset, rank, scaling = (np.zeros(part.shape[1:], dtype) for part, dtype in self._table_parts())
        for kind, offsets in room.offsets.items():
            offset[KINDS.index(kind), : len(offsets)] = offsets
        for module in modules:
            place = KINDS.index(module.kind), module.layer
            rank[place], scaling[place] = module.rank, module.scaling
        for (part, _), row in zip(self._table_parts(), (offset, rank, scaling), strict=True):
            part[room.slot] = torch.from_numpy(row)

    def free(self, room: Room) -> None:
        """Take the room back; its slot then does nothing to whoever still names it."""
        self.table.rank[room.slot] = 0
        self._arena.release_all(offset for offsets in room.offsets.values() for offset in offsets)
        self._free_slots.append(room.slot)

    def check_integrity(self, rooms: Sequence[Room]) -> list[str]:
        """Whether exactly these rooms are taken."""
        errors = self._arena.check_integrity()
        if sorted([*self._free_slots, *(room.slot for room in rooms)]) != list(range(self._slots)):
            errors.append("adapter slots: one is lost or taken twice")
        taken = sum(self.count_bytes({kind: len(offsets) for kind, offsets in room.offsets.items()}) for room in rooms)
        if taken != self.capacity - self.bytes_free:
            errors.append(f"adapter pages: {taken} bytes have an owner, {self.capacity - self.bytes_free} are taken")
        return errors

    def _table_parts(self) -> list[tuple[torch.Tensor, type[np.generic]]]:
        return [(self.table.offset, np.int64), (self.table.rank, np.int32), (self.table.scaling, np.float32)]

    def _page_size(self, kind: str) -> int:
        return self._base.num_layers * RANKS_PER_PAGE * sum(self._base.kinds[kind])

    def _host_pages(self, room: Room, buffer: torch.Tensor) -> Pages:
        bits = buffer.view(torch.int32 if self._item_size == 4 else torch.int16).numpy()
        unsigned = bits.view(f"u{self._item_size}")
        return {
            kind: [
                unsigned[offset : offset + self._page_size(kind)].reshape(self._base.num_layers, -1)
                for offset in offsets
            ]
            for kind, offsets in room.offsets.items()
        }

    def _pack(self, room: Room) -> Room:
        """The same pages one after another from 0."""
        packed, position = Room(room.slot, {}), 0
        for kind, offsets in room.offsets.items():
            packed.offsets[kind] = [position + index * self._page_size(kind) for index in range(len(offsets))]
            position += self._page_size(kind) * len(offsets)
        return packed


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
