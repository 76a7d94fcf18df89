"""FakeAdapters: residency without weights, with loads that end when a test says so."""

import itertools
from typing import Any

from .fake_model import INVOCATIONS


class FakeAdapters:
    """Residency of a few adapters in `capacity` places; loads end when the test says so, or at once."""

    def __init__(self, capacity: int = 2, instant: bool = True) -> None:
        self.capacity = capacity
        self.instant = instant
        self.registered: set[str] = set()
        self.loading: set[str] = set()
        self.failed: dict[str, str] = {}
        self.pinned: set[str] = set()
        self.changing: set[str] = set()
        self.vocab_sizes: dict[str, int] = {}
        """Adapters that do more than add to the base's outputs."""
        self.epochs: dict[str, int] = {}
        self._loads = itertools.count(1)
        self.held: dict[str, int] = {}
        """Resident adapters, least recently used first, and how often they are held."""

    def register(self, *digests: str) -> None:
        self.registered.update(digests)

    def acquire(self, digests: tuple[str, ...]) -> tuple[int, ...] | None:
        here = [self._is_here(digest) for digest in digests]
        if all(here):
            for digest in digests:
                self.held[digest] = self.held.pop(digest) + 1
        return tuple([self.epochs[digest] for digest in digests]) if all(here) else None

    def is_additive(self, digest: str) -> bool:
        assert self.held[digest]
        return digest not in self.changing

    def vocab_size(self, digest: str) -> int:
        assert self.held[digest]
        return self.vocab_sizes.get(digest, 1 << 30)

    def score_head(self, digest: str) -> dict[str, Any]:
        assert self.held[digest]
        return {}

    def changes_logits(self, digest: str) -> bool:
        assert self.held[digest]
        return False

    def invocation_tokens(self, digest: str) -> tuple[int, ...]:
        assert self.held[digest]
        return INVOCATIONS.get(digest, ())

    def _is_here(self, digest: str) -> bool:
        if digest in self.held:
            return True
        if digest in self.registered and digest not in self.failed and digest not in self.loading and self._make_room():
            self.loading.add(digest)
            if self.instant:
                self.finish_load(digest)
        return digest in self.held

    def release(self, digest: str) -> None:
        assert self.held[digest] > 0, f"{digest} released twice"
        self.held[digest] -= 1
        if digest not in self.registered and not self.held[digest]:
            del self.held[digest]

    def failure(self, digest: str) -> str | None:
        if digest not in self.registered:
            return f"no adapter {digest} is registered"
        return self.failed.get(digest)

    def finish_load(self, digest: str, error: str | None = None) -> None:
        self.loading.remove(digest)
        if digest not in self.registered:
            return
        if error is None:
            self.held[digest], self.epochs[digest] = 0, next(self._loads)
        else:
            self.failed[digest] = error

    def unregister(self, digest: str) -> None:
        """Those who hold it keep it."""
        self.registered.discard(digest)
        self.failed.pop(digest, None)
        self.pinned.discard(digest)
        if self.held.get(digest) == 0:
            del self.held[digest]

    def evict(self, digest: str) -> None:
        if self.held.get(digest) == 0 and digest not in self.pinned:
            del self.held[digest]

    def _make_room(self) -> bool:
        if len(self.held) + len(self.loading) < self.capacity:
            return True
        idle = next((d for d, count in self.held.items() if not count and d not in self.pinned), None)
        if idle is not None:
            del self.held[idle]
        return idle is not None
