"""KeyedPool: who holds which of many equal places, which free ones can be found by a key, and which goes next."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from .prefix import BlockKey

PADDING: Final = 0
"""Never handed out: what is unused in a step points here."""


class KeyedPool:
    """Bookkeeping of `count` places, the padding among them. Calls are O(1) a place.

    A place is *held* while its reference count is positive. A free one that was published stays findable until it is
    needed: the least recently freed goes first.
    """

    NAME: ClassVar[str] = "place"

    def __init__(self, count: int) -> None:
        self._count = count
        self._references = [0] * count
        self._keys: list[BlockKey | None] = [None] * count
        self._blank = list(range(count - 1, PADDING, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()
        self._published: dict[bytes, int] = {}

    @property
    def num_usable(self) -> int:
        return self._count - 1

    @property
    def num_free(self) -> int:
        """Places nobody holds, the cached ones included."""
        return len(self._blank) + len(self._reusable)

    @property
    def num_cached(self) -> int:
        """Free places that can still be found."""
        return len(self._reusable)

    def references(self, place: int) -> int:
        return self._references[place]

    def is_published(self, place: int) -> bool:
        return self._keys[place] is not None

    def cached(self) -> Iterable[int]:
        return self._reusable.keys()

    def allocate(self) -> int:
        """Take a free place, a blank one first. The caller knows that there is one."""
        if self._blank:
            place = self._blank.pop()
        else:
            place, _ = self._reusable.popitem(last=False)
            self._unpublish(place)
        self._references[place] = 1
        return place

    def share(self, places: Iterable[int]) -> None:
        """Hold places that others hold or that are cached, once more."""
        for place in places:
            if self._references[place] == 0:
                del self._reusable[place]
            self._references[place] += 1

    def free(self, places: Sequence[int]) -> None:
        """Let go of them. The tail becomes the older part: a prefix outlives what follows it."""
        for place in reversed(places):
            assert self._references[place] > 0, f"{self.NAME} {place} freed twice"
            self._references[place] -= 1
            if self._references[place] == 0:
                if self._keys[place] is None:
                    self._blank.append(place)
                else:
                    self._reusable[place] = None

    def publish(self, place: int, key: BlockKey) -> None:
        """Make a held place findable. Where another has the same key already, that one stays."""
        assert self._references[place] > 0
        if self._keys[place] is None and key.hash not in self._published:
            self._keys[place] = key
            self._published[key.hash] = place

    def find(self, key: BlockKey) -> int | None:
        """The place with this key. It is not held yet."""
        place = self._published.get(key.hash)
        return place if place is not None and self._keys[place] == key else None

    def forget(self, places: Iterable[int]) -> None:
        """Never find these held places again: their content cannot be trusted."""
        for place in places:
            assert self._references[place] > 0
            if self._keys[place] is not None:
                self._unpublish(place)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """Compare the books with what all live sequences hold; every difference in words."""
        held = Counter(place for table in tables for place in table)
        free = Counter([*self._blank, *self._reusable])
        problems = [
            f"{self.NAME} {place}: counted {self._references[place]} times, held {held[place]}, free {free[place]}"
            for place in range(1, self._count)
            if self._references[place] != held[place] or free[place] != (held[place] == 0)
        ]
        if held[PADDING] or free[PADDING]:
            problems.append(f"the padding {self.NAME} was handed out")
        keys = {key.hash: place for place, key in enumerate(self._keys) if key is not None}
        if keys != self._published or any(self._keys[place] is not None for place in self._blank):
            problems.append(f"the index of published {self.NAME}s does not match the {self.NAME}s")
        return problems

    def _unpublish(self, place: int) -> None:
        key = self._keys[place]
        assert key is not None
        del self._published[key.hash]
        self._keys[place] = None
