"""Share: a node of the tree by which the engine's time is shared out: tenant, priority, group, request."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final, Generic, TypeVar

Path = tuple["Share[Any]", ...]
"""From the root down: root, tenant, priority, group, request."""
STALE_ENTRIES: Final = 16
"""A heap with this many more entries than twice its children is rebuilt."""
Waiting = TypeVar("Waiting")
"""What waits: a sequence."""


class Share(Generic[Waiting]):
    """The next child is that with the least priority value, then the least service, then the longest wait.

    Service is in weighted tokens and only grows, so entries of the heap are mended as they come up.
    """

    __slots__ = (
        "_heap",
        "_last_to_leave",
        "children",
        "clock",
        "line",
        "live",
        "name",
        "number",
        "priority",
        "service",
        "waiting",
    )

    def __init__(self, name: object = None, priority: int = 0) -> None:
        self.name = name
        self.priority = priority
        self.children: dict[object, Share[Waiting]] = {}
        self.line: list[Waiting] = []
        """Sequences that wait, in their order: of the lowest level only."""
        self.service = 0
        self.waiting = 0
        """Sequences that wait, here or below."""
        self.live = 0
        """Requests that have not ended, here or below."""
        self.number = -1
        """Order in which shares began to wait."""
        self.clear()

    def clear(self) -> None:
        """Forget the children: nothing below is live."""
        self.children.clear()
        self.clock = 0
        """Service of the latest child that had a sequence admitted, as it was then."""
        self._last_to_leave: Share[Waiting] | None = None
        self._heap: list[tuple[int, int, int, Share[Waiting]]] = []

    def enlist(self, child: "Share[Waiting]", number: int) -> None:
        """A child begins to wait. It starts level with those that wait already: idling earns no credit.

        The clock moves on with each admission. Without it, newcomers that never stop coming would all start before a
        child that was served a lot once, and it would wait for good.
        """
        child.service = max(child.service, self.clock, self._floor())
        child.number = number
        if len(self._heap) > 2 * len(self.children) + STALE_ENTRIES:
            self._heap = [_entry(other) for other in self.children.values() if other.waiting]
            heapify(self._heap)
        heappush(self._heap, _entry(child))

    def child(self, name: object, priority: int = 0) -> "Share[Waiting]":
        """The child of this name, a new one if there is none."""
        child = self.children.get(name)
        if child is None:
            child = self.children[name] = Share(name, priority)
        return child

    def note_leaving(self, child: "Share[Waiting]") -> None:
        """Nothing waits below this child any more."""
        self._last_to_leave = child

    def first(self) -> "Share[Waiting] | None":
        """The child that is next."""
        heap = self._heap
        while heap:
            _, service, number, child = heap[0]
            if not child.waiting or child.number != number:
                heappop(heap)
            elif child.service != service:
                heapreplace(heap, _entry(child))
            else:
                return child
        return None

    def in_turn(self) -> Iterator["Share[Waiting]"]:
        """The children that wait, next first. Only what comes after the first costs more than O(log n)."""
        first = self.first()
        if first is None:
            return
        yield first
        others = [child for child in self.children.values() if child.waiting and child is not first]
        yield from sorted(others, key=lambda child: (child.priority, child.service, child.number))

    def sequences(self) -> Iterator[Waiting]:
        """All that wait here or below, next first."""
        yield from self.line
        for child in self.in_turn():
            yield from child.sequences()

    def _floor(self) -> int:
        first = self.first() or self._last_to_leave
        return 0 if first is None else first.service


def _entry(child: Share[Waiting]) -> tuple[int, int, int, Share[Waiting]]:
    return child.priority, child.service, child.number, child
