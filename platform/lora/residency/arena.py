"""Arena: hands out extents of one flat buffer. Best fit, with neighbours joined again when they are freed.

Free extents are kept sorted by (size, offset), so the best fit is one binary search; two maps find the neighbours.
The sorted list moves by memmove on insertion, which stays below a microsecond at the thousands of extents there are.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable


class Arena:
    """Counts in elements. Offsets and sizes are multiples of `alignment`."""

    def __init__(self, size: int, alignment: int = 1) -> None:
        self.alignment = alignment
        self.size = size // alignment * alignment
        self.used = 0
        self.reached = 0
        """Past it no extent has ever been: memory that the system may still have to find."""
        self._taken: dict[int, int] = {}
        self._free: list[tuple[int, int]] = []
        self._free_by_start: dict[int, int] = {}
        self._free_by_end: dict[int, int] = {}
        if self.size:
            self._add_free(0, self.size)

    @property
    def free(self) -> int:
        return self.size - self.used

    def rounded(self, size: int) -> int:
        """What an extent of `size` elements really takes."""
        return -(-size // self.alignment) * self.alignment

    def allocate(self, size: int) -> int | None:
        """Offset of a new extent of at least `size` > 0 elements; None when no gap is large enough."""
        assert size > 0
        size = self.rounded(size)
        place = bisect_left(self._free, (size, 0))
        if place == len(self._free):
            return None
        gap, offset = self._free[place]
        self._remove_free(offset, gap)
        if gap > size:
            self._add_free(offset + size, gap - size)
        self._taken[offset] = size
        self.used += size
        self.reached = max(self.reached, offset + size)
        return offset

    def allocate_all(self, sizes: Iterable[int]) -> list[int] | None:
        """Offsets of one extent per size, or None and nothing taken. The largest are placed first."""
        ordered = sorted(enumerate(sizes), key=lambda item: -item[1])
        offsets: dict[int, int] = {}
        for index, size in ordered:
            offset = self.allocate(size)
            if offset is None:
                self.release_all(offsets.values())
                return None
            offsets[index] = offset
        return [offsets[index] for index in range(len(ordered))]

    def release(self, offset: int) -> None:
        """Give back the extent that `allocate` returned."""
        size = self._taken.pop(offset)
        self.used -= size
        before = self._free_by_end.get(offset)
        if before is not None:
            self._remove_free(before, offset - before)
            offset, size = before, size + offset - before
        after = self._free_by_start.get(offset + size)
        if after is not None:
            self._remove_free(offset + size, after)
            size += after
        self._add_free(offset, size)

    def release_all(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.release(offset)

    def check_integrity(self) -> list[str]:
        """Every element belongs to exactly one extent, no two free ones touch, and the maps agree."""
        errors = []
        free = {offset: size for size, offset in self._free}
        extents = sorted([*free.items(), *self._taken.items()])
        position, previous_free = 0, False
        for offset, size in extents:
            if offset != position:
                errors.append(f"arena: element {position} to {offset} is lost or taken twice")
            if offset in free and previous_free:
                errors.append(f"arena: free extents touch at {offset}")
            position, previous_free = offset + size, offset in free
        if position != self.size or self.used != sum(self._taken.values()):
            errors.append(f"arena: extents end at {position} of {self.size}, {self.used} counted as used")
        if free != self._free_by_start or free != {start: end - start for end, start in self._free_by_end.items()}:
            errors.append("arena: the maps of free extents disagree")
        return errors

    def _add_free(self, offset: int, size: int) -> None:
        insort(self._free, (size, offset))
        self._free_by_start[offset] = size
        self._free_by_end[offset + size] = offset

    def _remove_free(self, offset: int, size: int) -> None:
        del self._free[bisect_left(self._free, (size, offset))]
        del self._free_by_start[offset]
        del self._free_by_end[offset + size]
