"""AdapterPool against a simple model: any order of requests, orders, slow loads and damage keeps every promise."""

import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from loraplex.lora.residency.epochs import StaleError

from .adapters import make_adapter
from .house import PAGE, House

RANKS = (1, 8, 9, 16, 24, 40)
"""The pool has three pages: the last adapter never fits, the one before only alone."""
FOLDERS: dict[int, tuple[str, Path]] = {}


def stored(index: int) -> tuple[str, Path]:
    """Digest and folder of adapter `index`, written once for all examples."""
    if index not in FOLDERS:
        FOLDERS[index] = make_adapter(Path(tempfile.mkdtemp(prefix="loraplex-test-")), RANKS[index], seed=index)
    return FOLDERS[index]


class PoolMachine(RuleBasedStateMachine):
    held = Bundle("held")
    """Digests, one entry per acquire that was answered with epochs."""
    seen = Bundle("seen")
    """Digests and the epochs that they were ever acquired with."""
    index = st.integers(0, len(RANKS) - 1)

    @initialize(host_pages=st.sampled_from([0, 2, 4]))
    def build(self, host_pages: int) -> None:
        self.house = House(Path("unused"), pages=3, slots=3, host_pages=host_pages)
        self.host_pages = host_pages
        self.pool = self.house.pool
        self.known: set[str] = set()
        self.pinned: set[str] = set()
        self.users: Counter[str] = Counter()
        self.epochs: dict[str, int] = {}
        """Of those that are or were in use, as of the last acquire."""
        self.given: set[int] = set()
        for index in range(len(RANKS)):
            self.house.seeds[stored(index)[0]] = index, RANKS[index]
            self.register(index, pinned=False)

    @rule(index=index, pinned=st.booleans())
    def register(self, index: int, pinned: bool) -> None:
        digest, folder = stored(index)
        self.pool.register(digest, str(folder), pinned)
        self.known.add(digest)
        self._note_pin(digest, pinned)

    @rule(index=index)
    def unregister(self, index: int) -> None:
        digest = stored(index)[0]
        self.pool.unregister(digest)
        self.known.discard(digest)
        self.pinned.discard(digest)

    @rule(index=index, pinned=st.booleans())
    def pin(self, index: int, pinned: bool) -> None:
        digest = stored(index)[0]
        if digest not in self.known:
            with pytest.raises(ValueError):
                self.pool.pin(digest, pinned)
        else:
            self.pool.pin(digest, pinned)
            self._note_pin(digest, pinned)

    @rule(index=index)
    def load(self, index: int) -> None:
        digest = stored(index)[0]
        if digest in self.known:
            self.pool.load(digest)
            assert self.pool.failure(digest) is None

    @rule(index=index)
    def evict(self, index: int) -> None:
        digest = stored(index)[0]
        if digest not in self.known or digest in self.pinned or self.house.status(digest).state == "loading":
            with pytest.raises(ValueError):
                self.pool.evict(digest)
        else:
            self.pool.evict(digest)
            assert self.users[digest] or not self.pool.resident(digest)

    @rule(target=held, index=index)
    def acquire(self, index: int) -> str:
        return self.take(stored(index)[0])

    def take(self, digest: str) -> str:
        """The digest, or nothing where it was not to be had."""
        epochs = self.pool.acquire((digest,))
        if epochs is None:
            return ""
        assert digest in self.known
        self._note_generation(digest, *epochs)
        self.users[digest] += 1
        return digest

    @rule(target=seen, digest=held)
    def remember(self, digest: str) -> tuple[str, int]:
        return digest, self.epochs.get(digest, 0)

    @rule(remembered=seen)
    def use_what_is_remembered(self, remembered: tuple[str, int]) -> None:
        """As a step that was planned long ago: it finds the adapter's own pages, or is refused."""
        digest, epoch = remembered
        held = self.take(digest)
        if self.users[digest] and self.epochs[digest] == epoch:
            self.house.check_pages(digest, epoch)
        else:
            with pytest.raises(StaleError):
                self.pool.slot_of(digest, epoch)
        self.release(held)

    @rule(digest=held)
    def release(self, digest: str) -> None:
        if self.users[digest]:
            self.users[digest] -= 1
            self.pool.release(digest)

    @rule()
    def poll(self) -> None:
        self.pool.poll()

    @precondition(lambda self: self.house.executor.jobs)
    @rule(data=st.data())
    def finish_a_job(self, data: st.DataObject) -> None:
        """The first one where there is a host cache: its promise."""
        last = 0 if self.host_pages else len(self.house.executor.jobs) - 1
        self.house.executor.run(data.draw(st.integers(0, last)))

    @rule(target=seen, index=index)
    def come_and_go(self, index: int) -> tuple[str, int]:
        """In and out of memory, twice: rules that do less seldom add up to it."""
        digest = stored(index)[0]
        for _ in range(2):
            self.release(self.take(digest))
            self.house.work(3)
            with suppress(ValueError):
                self.pool.evict(digest)
        return digest, self.epochs.get(digest, 0)

    @precondition(lambda self: self.house.executor.jobs)
    @rule()
    def a_job_fails(self) -> None:
        future, _, _ = self.house.executor.jobs.pop(0)
        future.set_exception(OSError("the disk is gone"))

    @rule(seconds=st.sampled_from([0.01, 0.6, 2.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.house.clock.now += seconds

    @invariant()
    def the_books_are_right(self) -> None:
        assert self.pool.check_integrity() == []
        statuses = {status.digest: status for status in self.pool.statuses()}
        assert set(statuses) == self.known
        for digest, status in statuses.items():
            assert (status.running, status.pinned) == (self.users[digest], digest in self.pinned)
            assert (status.error is not None) == (status.state == "failed")
            assert (status.tier == "device") == (status.state == "resident")
        kept = sum(status.host_bytes for status in statuses.values())
        assert kept <= self.pool.host_bytes_used <= self.host_pages * PAGE

    @invariant()
    def who_is_used_keeps_its_pages(self) -> None:
        for digest, count in self.users.items():
            if count:
                self.house.check_pages(digest, self.epochs[digest])

    def teardown(self) -> None:
        """Whatever happened, the pool can be emptied, and every adapter that fits can be had."""
        self._let_everything_go()
        assert self.pool.bytes_used == self.pool.host_bytes_used == 0
        for index, rank in enumerate(RANKS):
            digest, folder = stored(index)
            self.pool.register(digest, str(folder))
            self.house.clock.now += 100
            if rank <= 24:
                self.house.take(digest)
                self.pool.release(digest)
            else:
                self.pool.acquire((digest,))
                self.house.work()
                assert "does not fit" in str(self.pool.failure(digest))

    def _let_everything_go(self) -> None:
        for digest in list(self.users.elements()):
            self.pool.release(digest)
        for index in range(len(RANKS)):
            self.pool.unregister(stored(index)[0])
        self.house.work()

    def _note_generation(self, digest: str, epoch: int) -> None:
        """A new one for each load, the same one as long as anybody holds it."""
        if epoch != self.epochs.get(digest):
            assert epoch not in self.given and not self.users[digest]
        self.epochs[digest] = epoch
        self.given.add(epoch)

    def _note_pin(self, digest: str, pinned: bool) -> None:
        if pinned:
            self.pinned.add(digest)
        else:
            self.pinned.discard(digest)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=60)
