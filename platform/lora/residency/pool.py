"""AdapterPool: which adapters are known, which are resident, and who uses them. The engine's one door to adapters.

Life of an adapter: registered -> loading -> resident -> registered again when evicted, then with its pages in the host
cache. A load that fails marks this adapter only, and is tried again after a while.
"""

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor

import numpy as np
import torch
from numpy.typing import NDArray

from ..apply.batch import PageTable
from ..files.manifest import HEAD, BaseSignature
from .epochs import StaleError
from .finish import BaseModules
from .host_cache import HostCache
from .job_thread import JobThread
from .loader import Loader, Refuse
from .page_copier import Streams
from .pages import PageStore
from .residency import AdapterEntry, Residency, State
from .weights import Contents


class AdapterPool:
    """Every method belongs to the engine thread; see Loader for why that is enough."""

    def __init__(
        self,
        base: BaseSignature,
        *,
        memory: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        host_memory: int = 0,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
        modules: BaseModules | None = None,
        streams: Streams | None = None,
        refuse: Refuse = lambda contents: None,
    ) -> None:
        """`memory`: bytes for pages of `dtype`; `slots`: adapters that may be resident at once; `host_memory`: bytes
        for the pages of adapters that had to leave; `modules`: those of the base, which DoRA, trained biases, norms and
        rows of tokens need; `refuse`: why an adapter is not to be loaded.

        `executor` must run its jobs in the order of their submission, as one thread does: more would only compete with
        the model for memory and cores. `streams`: of the device; without them steps are on its default stream.
        """
        self._base = base
        self._store = PageStore(base, memory, slots, dtype, device, streams)
        self._executor = executor or JobThread("adapter-loader")
        self._host = HostCache(host_memory, dtype, device)
        self._loader = Loader(base, self._store, self._host, self._executor, clock, modules, refuse)
        self._clock = clock
        self._entries: dict[str, AdapterEntry] = {}

    # What the registry asks for

    def register(self, digest: str, folder: str, pinned: bool = False) -> None:
        """Make an adapter known. Idempotent; a pinned one is loaded at once."""
        entry = self._entries.setdefault(digest, AdapterEntry(digest, folder))
        if entry.folder != folder:
            self._host.drop(digest)
        entry.folder = folder
        if entry.removed:
            entry.removed = entry.leaving = False
        self.pin(digest, pinned)

    def unregister(self, digest: str) -> None:
        """Forget an adapter after its last user; nobody new gets it. Unknown digests are fine."""
        entry = self._entries.get(digest)
        if entry is not None:
            entry.removed, entry.pinned, entry.ordered = True, False, False
            self._settle(entry)

    def pin(self, digest: str, pinned: bool) -> None:
        """A pinned adapter is loaded at once and never evicted. ValueError when it is not registered."""
        entry = self._known(digest)
        entry.pinned = pinned
        if pinned:
            self.load(digest)

    def load(self, digest: str) -> None:
        """Make it resident as soon as there is room; `resident` and `failure` tell when and why not."""
        entry = self._known(digest)
        entry.leaving, entry.leaving_for = False, None
        if entry.state is not State.RESIDENT:
            entry.ordered, entry.retry_at = True, -math.inf
            self._loader.start(entry)

    def evict(self, digest: str) -> None:
        """Free its pages after its last user. ValueError when it is pinned, loading or not registered."""
        entry = self._known(digest)
        if entry.pinned:
            raise ValueError(f"adapter {digest[:12]} is pinned; unpin it first")
        if entry.state is State.LOADING:
            raise ValueError(f"adapter {digest[:12]} is being loaded; evict it when it is resident")
        entry.leaving, entry.leaving_for = entry.state is State.RESIDENT, None
        self._settle(entry)

    # What the scheduler asks for

    def acquire(self, digests: tuple[str, ...]) -> tuple[int, ...] | None:
        """Take all of them for one request: the epoch of each one's slot. None: not all are resident and none is
        taken; the missing ones are being loaded, or `failure` says why not."""
        entries = [self._entries.get(digest) for digest in digests]
        known = [entry for entry in entries if entry is not None and not entry.removed]
        if len(known) < len(digests):
            return None
        now = self._clock()
        for entry in known:
            entry.asked, entry.company = now, digests
        missing = [entry for entry in known if entry.state is not State.RESIDENT or entry.leaving]
        for entry in missing:
            self._loader.start(entry)
        for entry in known:
            # Those that are here already wait for the others without being evicted for them.
            entry.users, entry.fresh = entry.users + (not missing), bool(missing)
            entry.last_used = now if not missing else entry.last_used
        return None if missing else tuple([entry.room.epoch for entry in known if entry.room is not None])

    def release(self, digest: str) -> None:
        """Give back what one successful `acquire` took."""
        entry = self._entries[digest]
        assert entry.users > 0
        entry.users, entry.last_used = entry.users - 1, self._clock()
        self._settle(entry)

    def failure(self, digest: str) -> str | None:
        """Why it cannot be had now, in words; None while there is hope."""
        entry = self._entries.get(digest)
        if entry is None or entry.removed:
            return f"adapter {digest[:12]} is not registered"
        return entry.error if entry.state is State.FAILED and self._clock() < entry.retry_at else None

    def is_unfit(self, digest: str) -> bool:
        """Whether a `failure` is about the adapter itself: not about what is here beside it, the disk or the device."""
        entry = self._entries.get(digest)
        return entry is not None and entry.state is State.FAILED and entry.unfit

    def is_additive(self, digest: str) -> bool:
        """Whether a taken adapter only adds to what the base computes."""
        contents = self._contents(digest)
        vectors = (vector for module in contents.with_vectors for vector in module.vectors)
        own_tokens = contents.vocab_size != self._base.vocab_size or any(map(len, contents.tokens.values()))
        return not own_tokens and all(vector.role == "lora_bias" for vector in vectors)

    def vocab_size(self, digest: str) -> int:
        """Tokens that the base knows with this taken adapter."""
        return self._contents(digest).vocab_size

    def score_head(self, digest: str) -> Mapping[str, NDArray[np.float32]]:
        """Classification head that a taken adapter brings, by names of tensors; empty where it brings none."""
        return self._contents(digest).score

    def changes_logits(self, digest: str) -> bool:
        """Whether a taken adapter changes the base's lm_head."""
        return any(page.kind == HEAD for page in self._contents(digest).pages)

    def invocation_tokens(self, digest: str) -> tuple[int, ...]:
        """Of a taken adapter: it acts on a prompt from the last occurrence of these on; none: on all of it."""
        return self._contents(digest).invocation_tokens

    @property
    def newest_epoch(self) -> int:
        """Of all slots: it grows whenever one is given away or taken back."""
        return self._store.newest_epoch

    def slot_of(self, digest: str, epoch: int) -> int:
        """Its slot in the table, for a step that begins now; `epoch` is what `acquire` gave. StaleError where the
        slot, which is its own as long as it is held, was given away all the same."""
        entry = self._entries.get(digest)
        if entry is not None and entry.users > 0 and entry.room is not None:
            room = entry.room
            if room.epoch == epoch and self._store.holds(room):
                return room.slot
            # Nobody new gets it as it is; it is loaded again after its last user.
            entry.leaving = entry.leaving or (entry.state is State.RESIDENT and not self._store.holds(room))
        raise StaleError(f"adapter {digest[:12]} of epoch {epoch} has lost its pages while it was in use")

    # What the engine's loop asks for

    @property
    def table(self) -> PageTable:
        return self._store.table

    def poll(self) -> None:
        """Publish what the loader threads have finished and give room to the next. Once per step."""
        if self._loader.busy():
            for entry in self._loader.poll():
                self._settle(entry)
        else:
            self._loader.touch_ahead()

    def loading(self) -> bool:
        """Whether polling again soon is worth it."""
        return self._loader.busy()

    def resident(self, digest: str) -> bool:
        entry = self._entries.get(digest)
        return entry is not None and entry.state is State.RESIDENT

    def statuses(self) -> list[Residency]:
        now = self._clock()
        known = [entry for entry in self._entries.values() if not entry.removed]
        return [entry.status(now, self._host.bytes_of(entry.digest)) for entry in known]

    @property
    def evictions(self) -> int:
        """So far, also of adapters that are not registered any more."""
        return self._loader.evictions

    @property
    def bytes_used(self) -> int:
        return self._store.capacity - self._store.bytes_free

    @property
    def host_bytes_used(self) -> int:
        return self._host.bytes_used

    def check_integrity(self) -> list[str]:
        """Everything wrong with the books, in words; empty when all is well."""
        errors = self._loader.check_integrity() + self._host.check_integrity(self._entries)
        for entry in self._entries.values():
            if entry.users < 0 or (entry.users and entry.state is not State.RESIDENT):
                errors.append(f"adapter {entry.digest[:12]} is {entry.state} with {entry.users} users")
            if entry.removed and not entry.users and not entry.busy:
                errors.append(f"adapter {entry.digest[:12]} was removed and is still here")
        return errors

    def close(self) -> None:
        """Wait for the running load and end the loader thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _contents(self, digest: str) -> Contents:
        contents = self._entries[digest].contents
        assert contents is not None
        return contents

    def _known(self, digest: str) -> AdapterEntry:
        entry = self._entries.get(digest)
        if entry is None or entry.removed:
            raise ValueError(f"adapter {digest[:12]} is not registered")
        return entry

    def _settle(self, entry: AdapterEntry) -> None:
        """Do what was put off until nobody uses the adapter and no thread works on it."""
        if entry.users or entry.busy:
            return
        if entry.leaving or entry.removed:
            self._loader.withdraw(entry, winner=entry.leaving_for)
        if entry.removed:
            self._host.drop(entry.digest)
            del self._entries[entry.digest]
