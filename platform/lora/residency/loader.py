"""Loader: brings adapters into the page store and takes them out. Decides who gets room, and who makes it.

A load has four steps: a thread reads the header; the adapter waits for room; a thread fills its pages; where vectors
depend on the base's weights, the engine thread finishes them. Between the steps it moves the load on in `poll`.
The pages of one that leaves are copied to the host cache, finished as they are; from there they come back as one copy.
On a device the thread's part of a load ends with its bytes there, so that `poll` publishes what has arrived.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Final

from ..files.manifest import BaseSignature
from .eviction import FORGOTTEN, evictable, fits_beside, is_idle, must_stay, refusal
from .finish import BaseModules
from .host_cache import HostCache, HostCopy
from .pages import Mark, PageAllocation, PageStore
from .residency import AdapterEntry, State
from .weights import ChangedFile, Contents, Staging, load_pages, read_contents

PATIENCE: Final = 1.0
"""Seconds an adapter waits for room before nobody may overtake it and residents in use are asked to leave."""
LONGEST_RETRY: Final = 60.0
DONE: Final = object()
MOST_AHEAD: Final = 32 << 20
"""Bytes of memory that are written before the next adapter comes: where the system finds memory slowly, as virtual
machines may, that is half of a load (40 of 80 ms for 17.6 MB, measured)."""
TOUCHED_TOGETHER: Final = 2 << 20
"""Bytes of them that are written after a poll, beside a step."""
Refuse = Callable[[Contents], str | None]
"""Why an adapter cannot be served here, in words; None if it can."""


class Loader:
    """Belongs to the engine thread, so nothing locks: the loader thread only moves pages that no table entry shows, and
    hands them back through a Future that `poll` reads. Its jobs run one by one, in the order of their submission: pages
    that were freed are saved before anyone fills them anew."""

    def __init__(
        self,
        base: BaseSignature,
        store: PageStore,
        host: HostCache,
        executor: Executor,
        clock: Callable[[], float],
        modules: BaseModules | None,
        refuse: Refuse,
    ) -> None:
        """`modules` of the base must be given to load adapters that depend on them."""
        self._base = base
        self._modules = modules
        self._store = store
        self._host = host
        self._executor = executor
        self._clock = clock
        self._refuse = refuse
        self._staging = Staging()
        self._queue: dict[str, AdapterEntry] = {}
        """Loading, in the order in which they were first asked for."""
        self._residents: dict[str, AdapterEntry] = {}
        """In the order in which they were loaded."""
        self.evictions = 0
        """Of all adapters that ever were; one that is removed is not evicted."""
        self._ahead = 0
        """Bytes that the next adapter may take, as the last one did."""
        self._touching: Future[None] | None = None

    def busy(self) -> bool:
        return bool(self._queue)

    def start(self, entry: AdapterEntry) -> None:
        """Begin to load, unless it is loading, resident or has failed a moment ago."""
        now = self._clock()
        if entry.state in (State.LOADING, State.RESIDENT) or now < entry.retry_at:
            return
        entry.state, entry.started, entry.error, entry.from_host = State.LOADING, now, None, False
        self._queue[entry.digest] = entry
        entry.contents = self._host.contents_of(entry.digest) if entry.folder_read == entry.folder else None
        if entry.contents is None:
            entry.folder_read = entry.folder
            entry.job = self._executor.submit(
                read_contents, Path(entry.folder), self._base, self._store.dtype_name, self._modules
            )

    def poll(self) -> list[AdapterEntry]:
        """Move loads on. Returns the entries whose running job has ended."""
        ready = [entry for entry in self._queue.values() if entry.job is None or entry.job.done()]
        ended = [entry for entry in ready if entry.busy]
        for entry in ended:
            if entry.job is not None:
                self._take_result(entry)
            if entry.finishing is not None:
                self._finish_some(entry)
        self._give_room()
        return [entry for entry in ended if not entry.busy]

    def touch_ahead(self) -> None:
        """Write some of the memory that the next adapter will fill, while none is loading."""
        if self._touching is None or self._touching.done():
            untouched = self._store.untouched(self._ahead, TOUCHED_TOGETHER)
            self._touching = None
            if len(untouched):
                self._touching = self._executor.submit(self._store.touch, untouched, self._store.mark())

    def withdraw(self, entry: AdapterEntry, winner: str | None = None) -> None:
        """Free the pages of an unused resident, in favour of `winner`, or end the wait of one without a running job."""
        assert entry.users == 0 and not entry.busy
        if entry.state is State.RESIDENT:
            assert entry.room is not None
            if not entry.removed and entry.folder_read == entry.folder and self._store.holds(entry.room):
                self._save(entry, entry.room, winner)
            self._store.free(entry.room)
            del self._residents[entry.digest]
            entry.contents, entry.room, entry.state, entry.leaving = None, None, State.REGISTERED, False
            entry.evictions, entry.evicted_for = entry.evictions + 1, winner
            self.evictions += not entry.removed
            entry.leaving_for = None
        elif entry.state is State.LOADING:
            self._leave_queue(entry, State.REGISTERED)

    def check_integrity(self) -> list[str]:
        filling = [entry for entry in self._queue.values() if entry.room is not None]
        rooms = [entry.room for entry in (*filling, *self._residents.values()) if entry.room is not None]
        errors = self._store.check_integrity(rooms)
        errors += [f"adapter {e.digest[:12]} fills pages without a job" for e in filling if not e.busy]
        errors += [
            f"adapter {e.digest[:12]} is queued as {e.state}" for e in self._queue.values() if e.state != "loading"
        ]
        residents = self._residents.values()
        errors += [f"adapter {e.digest[:12]} is resident as {e.state}" for e in residents if e.state != "resident"]
        return errors

    # Steps of a load

    def _take_result(self, entry: AdapterEntry) -> None:
        assert entry.job is not None
        job, entry.job = entry.job, None
        error = job.exception()
        if error is not None and entry.from_host and entry.room is not None and self._store.holds(entry.room):
            # The copy could not be made, or not be read: that is not the adapter's fault, and its file is still there.
            self._host.drop(entry.digest)
            self._fill(entry, self._store.renew(entry.room))
        elif error is not None:
            self._fail(entry, _cause(entry, error), unfit=_is_unfit(error))
        elif entry.room is None:
            entry.contents = job.result()
            refusal = self._refuse(entry.contents)
            if refusal is not None:
                self._fail(entry, refusal, unfit=True)
                return
            pages = entry.contents.pages
            entry.pages, entry.bytes = sum(pages.values()), self._store.count_bytes(pages)
            entry.rank = int(entry.contents.ranks.max())
        else:
            assert entry.contents is not None
            rest = iter(()) if entry.from_host else self._store.finish(entry.room, entry.contents, self._modules)
            entry.finishing = rest

    def _finish_some(self, entry: AdapterEntry) -> None:
        """A part in each step: running requests shall not feel it."""
        assert entry.finishing is not None and entry.room is not None
        try:
            if next(entry.finishing, DONE) is not DONE:
                return
            entry.finishing = None
            self._publish(entry, entry.room)
        except (ValueError, RuntimeError, MemoryError) as error:
            # Out of memory, or a device error: this adapter's, and nobody else's.
            entry.finishing = None
            self._fail(entry, _cause(entry, error), unfit=_is_unfit(error))

    def _fill(self, entry: AdapterEntry, room: PageAllocation) -> None:
        """Let a thread fill the room; the table does not show it yet."""
        assert entry.contents is not None and entry.folder_read is not None
        copy = self._host.borrow(entry.digest)
        entry.room, entry.from_host = room, copy is not None
        if copy is not None:
            entry.job = self._executor.submit(self._restore, room, copy, self._host.epoch)
            return
        write = partial(
            load_pages,
            Path(entry.folder_read),
            entry.contents,
            self._base,
            entry.digest,
            self._store.dtype_name,
            self._staging,
        )
        entry.job = self._executor.submit(self._store.fill, room, write)

    def _restore(self, room: PageAllocation, copy: HostCopy, epoch: int) -> None:
        assert copy.job is not None
        copy.job.result()
        self._store.restore(room, copy.pages)
        self._host.check_unwritten(epoch)

    def _save(self, entry: AdapterEntry, room: PageAllocation, winner: str | None) -> None:
        """Keep a copy of what is about to be freed, unless there is one; not in the place of the winner's."""
        assert entry.contents is not None
        if self._host.renew(entry.digest):
            return
        copy = self._host.reserve(entry.digest, entry.contents, self._store.packed_size(room), spared=winner)
        if copy is not None:
            copy.job = self._executor.submit(self._write_copy, room, copy, self._store.mark())

    def _write_copy(self, room: PageAllocation, copy: HostCopy, after: Mark) -> None:
        self._host.begin_to_write(copy)
        self._store.save(room, copy.pages, after)

    def _publish(self, entry: AdapterEntry, room: PageAllocation) -> None:
        assert entry.contents is not None
        self._store.publish(room, entry.contents)
        self._leave_queue(entry, State.RESIDENT)
        self._residents[entry.digest] = entry
        entry.fresh, entry.failures, entry.loads = True, 0, entry.loads + 1
        entry.host_loads += entry.from_host
        entry.last_used = self._clock()
        entry.load_seconds = entry.last_used - entry.started
        self._ahead = min(entry.bytes, MOST_AHEAD)

    def _fail(self, entry: AdapterEntry, error: str, unfit: bool) -> None:
        """`unfit`: as of AdapterEntry."""
        self._leave_queue(entry, State.FAILED)
        entry.error, entry.unfit, entry.failures, entry.folder_read = error, unfit, entry.failures + 1, None
        entry.retry_at = self._clock() + min(LONGEST_RETRY, 2.0 ** (entry.failures - 1))
        if entry.room is not None:
            self._store.free(entry.room)
            entry.room = None

    def _leave_queue(self, entry: AdapterEntry, state: State) -> None:
        del self._queue[entry.digest]
        entry.state, entry.ordered = state, False
        if state is not State.RESIDENT:
            # Thousands of adapters are known, and each has hundreds of modules.
            entry.contents = None

    # PageAllocation

    def _give_room(self) -> None:
        """First come, first served; a small one may overtake until the first has lost its patience."""
        now = self._clock()
        for entry in [entry for entry in self._queue.values() if not entry.busy]:
            if entry.removed or not (entry.ordered or now - entry.asked < FORGOTTEN):
                self._leave_queue(entry, State.REGISTERED)
            elif not self._fit(entry) and entry.state is State.LOADING and now - entry.started > PATIENCE:
                self._ask_residents_to_leave(entry)
                return

    def _fit(self, entry: AdapterEntry) -> bool:
        """Begin to fill its pages if there is, or can be made, room now. Fails it when there can never be."""
        assert entry.contents is not None
        pages = entry.contents.pages
        room = self._store.reserve(pages)
        victims = iter(evictable(entry, self._residents.values(), self._store, self._clock()))
        while room is None and (victim := next(victims, None)) is not None:
            self.withdraw(victim, winner=entry.digest)
            room = self._store.reserve(pages)
        if room is not None:
            self._fill(entry, room)
        elif self._hopeless(entry):
            too_large = entry.bytes > self._store.capacity
            self._fail(entry, refusal(entry, self._residents.values(), self._store), unfit=too_large)
        return room is not None

    def _ask_residents_to_leave(self, entry: AdapterEntry) -> None:
        """Keep what comes free for `entry`: idle adapters go now, used ones, longest resident first, after their users.

        Without this, adapters under steady traffic would keep a new one waiting for ever.
        """
        now = self._clock()
        others = [other for other in self._residents.values() if not must_stay(other, entry)]
        coming = self._store.bytes_free + sum(other.bytes for other in others if other.leaving)
        slots = self._store.free_slots + sum(other.leaving for other in others)
        for other in sorted(others, key=lambda other: not is_idle(other, now)):
            if coming >= entry.bytes and slots > 0:
                return
            if not other.leaving:
                other.leaving, other.leaving_for = True, entry.digest
                coming, slots = coming + other.bytes, slots + 1
                if other.users == 0:
                    self.withdraw(other, winner=entry.digest)

    def _hopeless(self, entry: AdapterEntry) -> bool:
        """Whether it would not fit beside the adapters that must stay even if all others left."""
        if not fits_beside(entry, self._residents.values(), self._store):
            return True
        filling = any(other.room is not None for other in self._queue.values())
        return not filling and all(must_stay(other, entry) for other in self._residents.values())


def _cause(entry: AdapterEntry, error: BaseException) -> str:
    """In words that tell a client no paths of the server."""
    words = error.strerror if isinstance(error, OSError) else str(error)
    return f"adapter {entry.digest[:12]} cannot be loaded: {words or type(error).__name__}"


def _is_unfit(error: BaseException) -> bool:
    """Whether it is the adapter's: ValueError says so in words; others are of the disk, memory or the device."""
    return isinstance(error, ValueError) and not isinstance(error, ChangedFile)
