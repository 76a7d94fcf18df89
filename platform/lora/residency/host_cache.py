"""HostCache: copies of filled pages in the host's memory. An adapter that was evicted comes back without its file.

Only the books are kept here, by the engine thread. The bytes are moved by loader jobs, which run in the order of their
submission: a place may be given to the next copy while jobs that still read the last one wait for their turn.
"""

import weakref
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from .arena import Arena
from .epochs import Epochs
from .weights import Contents


@dataclass(slots=True)
class HostCopy:
    """An adapter's pages one after another, as `PageStore.save` leaves them."""

    contents: Contents
    pages: torch.Tensor
    """[elements] of the arena's dtype."""
    offset: int
    """Of the pages, in the cache's buffer."""
    epoch: int
    """Of its place."""
    job: Future[Any] | None = None
    """Fills the pages; what it raises, they hold nothing of worth."""


class HostCache:
    """Whose pages leave first: those that are on the device as well, then those that were evicted longest ago."""

    def __init__(self, memory: int, dtype: torch.dtype, device: torch.device) -> None:
        """`memory`: bytes, 0 to keep nothing. Copies for a CUDA device are in pinned memory; ValueError where there is
        not as much."""
        self._item_size = dtype.itemsize
        self._arena = Arena(memory // self._item_size)
        self._buffer = torch.empty(self._arena.size, dtype=dtype)
        if device.type == "cuda" and self._arena.size:
            _pin(self._buffer)
        self._copies: OrderedDict[str, HostCopy] = OrderedDict()
        self._epochs = Epochs()

    @property
    def epoch(self) -> int:
        """The newest."""
        return self._epochs.newest

    @property
    def bytes_used(self) -> int:
        return self._arena.used * self._item_size

    def bytes_of(self, digest: str) -> int:
        """What its copy takes, 0 where there is none."""
        copy = self._copies.get(digest)
        return 0 if copy is None else copy.pages.nbytes

    def renew(self, digest: str) -> bool:
        """It leaves the device now. False: there is no copy of it."""
        if digest in self._copies:
            self._copies.move_to_end(digest)
        return digest in self._copies

    def contents_of(self, digest: str) -> Contents | None:
        """What the adapter of a copy brings."""
        copy = self._copies.get(digest)
        return None if copy is None else copy.contents

    def reserve(self, digest: str, contents: Contents, size: int, spared: str | None) -> HostCopy | None:
        """A place for a new copy of `size` elements, whoever has to leave for it but `spared`. None: there is none."""
        assert digest not in self._copies
        if size > self._arena.size:
            return None
        while (offset := self._arena.allocate(size)) is None:
            oldest = next((other for other in self._copies if other != spared), None)
            if oldest is None:
                return None
            self.drop(oldest)
        pages, epoch = self._buffer[offset : offset + size], self._epochs.give()
        copy = self._copies[digest] = HostCopy(contents, pages, offset, epoch)
        return copy

    def borrow(self, digest: str) -> HostCopy | None:
        """Its copy, about to be on the device as well."""
        if digest in self._copies:
            self._copies.move_to_end(digest, last=False)
        return self._copies.get(digest)

    def drop(self, digest: str) -> None:
        """Forget its copy. Unknown digests are fine."""
        copy = self._copies.pop(digest, None)
        if copy is not None:
            self._arena.release(copy.offset)

    def begin_to_write(self, copy: HostCopy) -> None:
        """On the thread that fills its pages. StaleError where a later copy was written first: the place may be its."""
        self.check_unwritten(copy.epoch)
        self._epochs.begin_to_write(copy.epoch)

    def check_unwritten(self, since: int) -> None:
        """On a thread that has read a copy it was given when `since` was the newest epoch. StaleError where a
        later copy has been written meanwhile, perhaps in its place."""
        self._epochs.check_unwritten(since, "a copy in the host cache")

    def check_integrity(self, known: Iterable[str]) -> list[str]:
        """Whether every byte has an owner, and every owner is one of `known`."""
        errors = [f"host cache: {error}" for error in self._arena.check_integrity()]
        if sum(map(self.bytes_of, self._copies)) != self.bytes_used:
            errors.append(f"host cache: {self.bytes_used} bytes are taken, not as many as the copies have")
        strangers = self._copies.keys() - set(known)
        return errors + [f"host cache: adapter {digest[:12]} is gone and its copy is not" for digest in strangers]


def _pin(memory: torch.Tensor) -> None:
    """Lock it in its place, as long as it is there: what torch allocates locked comes in powers of two, up to twice of
    what was asked for."""
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if code:
        raise ValueError(
            f"the system locks no {memory.nbytes:,} bytes for copies to the device (CUDA says {code}): lower "
            f"adapter_host_memory"
        )
    weakref.finalize(memory, cudart.cudaHostUnregister, memory.data_ptr()).atexit = False
