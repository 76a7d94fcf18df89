"""PageStore: the rank pages of all resident adapters, and the one static table through which kernels find them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..apply.batch import RANKS_PER_PAGE, Extras, PageTable, RowPages, ordinals_of
from ..files.config_fields import MAX_RANK
from ..files.manifest import HEAD, BaseSignature, ModuleLora
from ..files.values import Bits
from .arena import Arena
from .epochs import Epochs, StaleError
from .finish import BaseModules, finish_module, needs_base
from .page_copier import Event, PageCopier, Streams, bits_of, join_runs
from .row_pages import INDEX_BYTES, index_bytes, page_bytes
from .weights import Contents, PageKind, Pages

logger = logging.getLogger(__name__)

DTYPE_NAMES: Final = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
ALIGNMENT_BYTES: Final = 128
"""A page begins on a cache line of any device."""
FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class PageAllocation:
    """One slot of the table and the pages that belong to it."""

    slot: int
    offsets: dict[PageKind, list[int]]
    """Where each page begins, in elements of the arena."""
    vacated: Event | None = None
    """After the last step that may read what was here before; None in the host's memory, where steps end at once."""
    epoch: int = 0
    """The slot's, as long as the room is its owner's and what was written there stays."""


class Mark(NamedTuple):
    """A moment of the engine thread."""

    steps: Event | None
    """After what it has done to pages until then, and the steps it has submitted; None: all is done."""
    epoch: int
    """The newest until then."""


class PageStore:
    """Used by the engine thread alone, but for `fill`, `save` and `restore`, which touch only the pages of a room that
    no table entry points to.

    With streams, pages are filled in pinned memory and copied; table entries change between two steps of the stream.
    """

    def __init__(
        self,
        base: BaseSignature,
        memory: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        streams: Streams | None = None,
    ) -> None:
        self._item_size = dtype.itemsize
        self._base = base
        self._shapes = base.shapes()
        self.dtype_name = DTYPE_NAMES[dtype]
        self._arena = Arena(memory // self._item_size, ALIGNMENT_BYTES // self._item_size)
        self._free_slots = list(reversed(range(slots)))
        self._slots = slots
        self._epochs = Epochs()
        self._current = [0] * slots
        """Generation of each slot."""
        shape = (slots, len(self._shapes))
        modules = max(module.count for module in base.modules.values())
        self.table = PageTable(
            arena=_memory(self._arena.size, dtype, device),
            offset=torch.zeros(*shape, MAX_RANK // RANKS_PER_PAGE, dtype=torch.int64, device=device),
            rank=torch.zeros(*shape, modules, dtype=torch.int32, device=device),
            scaling=torch.zeros(*shape, modules, dtype=torch.float32, device=device),
            shapes=self._shapes,
            ordinals=ordinals_of(base),
        )
        self._copier = PageCopier(device, streams)
        self._touched = 0
        self._vacated: Event | None = None

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
    def newest_epoch(self) -> int:
        return self._epochs.newest

    @property
    def bytes_free(self) -> int:
        return self._arena.free * self._item_size

    def count_bytes(self, pages: Mapping[PageKind, int]) -> int:
        return (
            sum(count * self._arena.rounded(self._page_size(kind)) for kind, count in pages.items()) * self._item_size
        )

    def reserve(self, pages: Mapping[PageKind, int]) -> PageAllocation | None:
        """A slot and room for these pages; None when either is lacking."""
        kinds = [kind for kind, count in pages.items() for _ in range(count)]
        offsets = self._arena.allocate_all(map(self._page_size, kinds)) if self._free_slots else None
        if offsets is None:
            return None
        slot = self._free_slots.pop()
        self._current[slot] = self._epochs.give()
        room = PageAllocation(slot, {kind: [] for kind in pages}, self._vacated, self._current[slot])
        for kind, offset in zip(kinds, offsets, strict=True):
            room.offsets[kind].append(offset)
        return room

    def renew(self, room: PageAllocation) -> PageAllocation:
        """The same room, which is still its owner's, to be filled from the start: nothing that was to use what is in it
        may."""
        self._current[room.slot] = self._epochs.give()
        return replace(room, epoch=self._current[room.slot])

    def holds(self, room: PageAllocation) -> bool:
        """Whether it is still its owner's, with what was written there."""
        return self._current[room.slot] == room.epoch

    def check(self, room: PageAllocation) -> None:
        """StaleError where it is not."""
        if not self.holds(room):
            now = self._current[room.slot]
            raise StaleError(f"adapter slot {room.slot} is of epoch {now} by now, not {room.epoch}")

    def untouched(self, ahead: int, most: int) -> Bits:
        """At most `most` bytes of memory that no room has ever had, out of the `ahead` bytes of it that come next; each
        part once, to be written by the thread that fills rooms. Empty on a device."""
        first = max(self._touched, self._arena.reached)
        end = min(self._arena.reached + ahead // self._item_size, self._arena.size, first + most // self._item_size)
        if not self._copier.in_place or end <= first:
            return np.empty(0, np.uint16)
        self._touched = end
        return bits_of(self.table.arena)[first:end]

    def touch(self, memory: Bits, since: Mark) -> None:
        """Write what was `untouched` at that moment, on any thread."""
        self._epochs.check_unwritten(since.epoch, "memory that no adapter has had")
        memory.fill(0)

    def fill(self, room: PageAllocation, write: Callable[[Pages], None]) -> None:
        """Run `write` on the room's pages, on any thread; on return their bytes are on the device. StaleError where
        they are somebody else's by now, also of `restore`."""
        if self._copier.in_place:
            self._begin_to_write(room)
            write(self._host_pages(room, self.table.arena))
            return
        staging = self._copier.staging(self.packed_size(room), self.table.arena.dtype)
        write(self._host_pages(self._pack(room), staging))
        self.restore(room, staging)

    def mark(self) -> Mark:
        return Mark(self._copier.mark(), self._epochs.newest)

    def save(self, room: PageAllocation, copy: torch.Tensor, after: Mark) -> None:
        """Copy the room's pages, as they are after the `mark`, one after another to `copy` [packed_size] in the host's
        memory, on any thread. StaleError where a room that was given away later may have been written meanwhile."""
        self._copier.carry(((kept, page) for page, kept in self._page_pairs(room, copy)), after.steps)
        self._epochs.check_unwritten(after.epoch, "pages that were to be kept")

    def restore(self, room: PageAllocation, copy: torch.Tensor) -> None:
        """Fill a room with what `save` has copied from one of the same modules, on any thread; on return its bytes are
        on the device."""
        self._begin_to_write(room)
        self._copier.carry(self._page_pairs(room, copy), room.vacated)

    def packed_size(self, room: PageAllocation) -> int:
        """Elements of a copy of the room's pages."""
        return sum(self._page_size(kind) * len(offsets) for kind, offsets in room.offsets.items())

    def publish(self, room: PageAllocation, contents: Contents) -> None:
        """Point the table at a filled room: from now on kernels may use its slot. StaleError where it is somebody
        else's by now."""
        self.check(room)
        offset = np.zeros(self.table.offset.shape[1:], np.int64)
        kinds = len(self._shapes)
        vectors, index, counts = np.full(kinds, -1, np.int64), np.zeros(kinds, np.int64), np.zeros(kinds, np.int32)
        for (kind, part), offsets in room.offsets.items():
            row = self.table.row(kind)
            match part:
                case "vectors":
                    vectors[row] = offsets[0] * self._item_size // FLOAT_BYTES
                case "ranks":
                    offset[row, : len(offsets)] = offsets
                case "index":
                    index[row], counts[row] = self._write_index(room, kind), len(contents.tokens[kind])
        known = np.array(0 if contents.vocab_size == self._base.vocab_size else contents.vocab_size, np.int32)
        table = self.table
        rows = (
            (table.vectors, vectors),
            (table.row_index, index),
            (table.row_counts, counts),
            (table.vocabularies, known),
            (table.offset, offset),
            (table.rank, contents.ranks),
            (table.scaling, contents.scalings),
        )
        self._copier.put_all([(part[room.slot], torch.from_numpy(values)) for part, values in rows])
        self._publish_extras(room, contents)

    def _write_index(self, room: PageAllocation, kind: str) -> int:
        """Where it begins, in numbers of 64 bits."""
        pages = room.offsets[PageKind(kind, "rows")]
        begin = room.offsets[PageKind(kind, "index")][0] * self._item_size // INDEX_BYTES
        self._copier.put(self.table.read_as(torch.int64)[begin : begin + len(pages)], torch.tensor(pages))
        return begin

    def _publish_extras(self, room: PageAllocation, contents: Contents) -> None:
        linears = self._base.linears
        kinds = {kind for kind, _ in room.offsets}.difference(linears)
        own_logits = PageKind(HEAD, "rows") in room.offsets or contents.vocab_size != self._base.vocab_size
        if own_logits:
            kinds.add(HEAD)
        has_vectors = any(part == "vectors" and kind in linears for kind, part in room.offsets)
        on_experts = not self._base.expert_kinds.isdisjoint(kind for kind, _ in room.offsets)
        if kinds or has_vectors or on_experts:
            rows = {
                kind: self._row_pages(room, kind, tokens) for kind, tokens in contents.tokens.items() if len(tokens)
            }
            acting = has_vectors, own_logits, on_experts
            self.table.extras[room.slot] = Extras(frozenset(kinds), rows, contents.vocab_size, *acting)

    @staticmethod
    def _row_pages(room: PageAllocation, kind: str, tokens: NDArray[np.int64]) -> RowPages:
        return RowPages(torch.from_numpy(tokens), torch.tensor(room.offsets[PageKind(kind, "rows")]))

    def finish(self, room: PageAllocation, contents: Contents, base: BaseModules | None) -> Iterator[None]:
        """Add to a filled room what depends on the base's weights, a part of it between two yields. ValueError for what
        DoRA cannot scale."""
        scalable: dict[str, torch.Tensor] = {}
        for module in contents.with_vectors:
            if needs_base(module):
                assert base is not None
                name = f"{module.kind} of layer {module.layer}"
                scalable[name] = yield from finish_module(module, *self._views(room, module), base)
        self._finish_norms(room, contents, base)
        if scalable:
            found = yield from self._copier.fetch(torch.stack(list(scalable.values())))
            for name, can in zip(scalable, found.tolist(), strict=True):
                if not can:
                    raise ValueError(f"{name} has an output of no weight, which DoRA cannot scale")

    def _finish_norms(self, room: PageAllocation, contents: Contents, base: BaseModules | None) -> None:
        """Norms that the adapter leaves as they are, of a kind of which it changes others, are the base's."""
        brought = {(module.kind, module.layer): module.vectors for module in contents.with_vectors}
        for kind, module in self._base.modules.items():
            if module.role == "norm" and PageKind(kind, "vectors") in room.offsets:
                assert base is not None
                for ordinal, layer in enumerate(module.layers or (0,)):
                    weight, bias = self._vectors(room, ordinal, kind)
                    roles = {vector.role for vector in brought.get((kind, layer), ())}
                    if "norm" not in roles:
                        weight[:] = base.norm(layer, kind)
                    if module.has_bias and "norm_bias" not in roles:
                        bias[:] = base.bias(layer, kind)

    def free(self, room: PageAllocation) -> None:
        """Take the room back; its slot then does nothing to whoever still names it. Steps submitted before may go on
        reading it: whoever gets its pages waits for them. A room that is somebody else's by now stays theirs."""
        if not self.holds(room):
            logger.error("integrity: adapter slot %d is not of epoch %d any more", room.slot, room.epoch)
            return
        self._current[room.slot] = self._epochs.give()
        table = self.table
        cleared = (table.rank, 0), (table.vectors, -1), (table.row_counts, 0), (table.vocabularies, 0)
        rows = [(part[room.slot], nothing) for part, nothing in cleared]
        self._copier.put_all([(row, torch.full_like(row, nothing, device="cpu")) for row, nothing in rows])
        self._vacated = self._copier.mark()
        table.extras.pop(room.slot, None)
        self._arena.release_all(offset for offsets in room.offsets.values() for offset in offsets)
        self._free_slots.append(room.slot)

    def check_integrity(self, rooms: Sequence[PageAllocation]) -> list[str]:
        """Whether exactly these rooms are taken, and each is of its slot's epoch."""
        errors = self._arena.check_integrity()
        for room in rooms:
            if not self.holds(room):
                now = self._current[room.slot]
                errors.append(f"adapter slot {room.slot} is of epoch {now}, who holds it has {room.epoch}")
        if sorted([*self._free_slots, *(room.slot for room in rooms)]) != list(range(self._slots)):
            errors.append("adapter slots: one is lost or taken twice")
        taken = sum(self.count_bytes({kind: len(offsets) for kind, offsets in room.offsets.items()}) for room in rooms)
        if taken != self.capacity - self.bytes_free:
            errors.append(f"adapter pages: {taken} bytes have an owner, {self.capacity - self.bytes_free} are taken")
        return errors

    def _begin_to_write(self, room: PageAllocation) -> None:
        self.check(room)
        self._epochs.begin_to_write(room.epoch)

    def _page_size(self, page: PageKind) -> int:
        """In elements."""
        inputs, outputs = self._shapes[page.kind]
        module = self._base.modules[page.kind]
        match page.part:
            case "ranks":
                return module.count * RANKS_PER_PAGE * (inputs + outputs)
            case "vectors":
                return module.count * 2 * outputs * FLOAT_BYTES // self._item_size
            case "rows":
                return page_bytes(module.row_size, self._item_size) // self._item_size
            case "index":
                return index_bytes(self._base.vocab_size) // self._item_size

    def _views(self, room: PageAllocation, module: ModuleLora) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The module's A [rank, in] and B rank-major [rank, out], copied, and its vectors [2, out] in the arena."""
        inputs, outputs = self._shapes[module.kind]
        pages = []
        for offset in room.offsets.get(PageKind(module.kind, "ranks"), ()):
            size = RANKS_PER_PAGE * (inputs + outputs)
            start = offset + self._ordinal(module) * size
            pages.append(self.table.arena[start : start + size])
        split = RANKS_PER_PAGE * inputs
        a = torch.cat([page[:split].view(-1, inputs) for page in pages] or [torch.empty(0, inputs)])
        b = torch.cat([page[split:].view(-1, outputs) for page in pages] or [torch.empty(0, outputs)])
        return a[: module.rank], b[: module.rank], self._vectors(room, self._ordinal(module), module.kind)

    def _ordinal(self, module: ModuleLora) -> int:
        return self._base.modules[module.kind].ordinal(module.layer)

    def _vectors(self, room: PageAllocation, ordinal: int, kind: str) -> torch.Tensor:
        """[2, out] in the arena."""
        outputs = self._shapes[kind][1]
        begin = room.offsets[PageKind(kind, "vectors")][0] * self._item_size // FLOAT_BYTES
        return self.table.floats[begin + ordinal * 2 * outputs :][: 2 * outputs].view(2, outputs)

    def _page_pairs(self, room: PageAllocation, copy: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Runs of pages that lie one after another in the arena, and where a copy has them."""
        arena, packed = self.table.arena, self._pack(room)
        pages = (
            (here, there, self._page_size(kind))
            for kind, offsets in room.offsets.items()
            for here, there in zip(offsets, packed.offsets[kind], strict=True)
        )
        for here, there, size in join_runs(pages):
            yield arena[here : here + size], copy[there : there + size]

    def _host_pages(self, room: PageAllocation, buffer: torch.Tensor) -> Pages:
        unsigned = bits_of(buffer)
        return {
            kind: [
                unsigned[offset : offset + self._page_size(kind)].reshape(self._base.modules[kind.kind].count, -1)
                for offset in offsets
            ]
            for kind, offsets in room.offsets.items()
        }

    def _pack(self, room: PageAllocation) -> PageAllocation:
        """The same pages one after another from 0."""
        packed, position = PageAllocation(room.slot, {}), 0
        for kind, offsets in room.offsets.items():
            packed.offsets[kind] = [position + index * self._page_size(kind) for index in range(len(offsets))]
            position += self._page_size(kind) * len(offsets)
        return packed


def _memory(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[size], uninitialized. numpy asks for huge pages, which torch does not: a decode over many adapters reads short
    runs of memory, a twentieth faster so."""
    if device.type != "cpu":
        return torch.empty(size, dtype=dtype, device=device)
    memory = np.empty(size * dtype.itemsize + ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return torch.from_numpy(memory[start : start + size * dtype.itemsize]).view(dtype)
