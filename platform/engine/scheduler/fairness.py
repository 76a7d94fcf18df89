"""FairQueue: which waiting sequence is next. A tree of virtual token counters (Sheng et al. 2024, arXiv 2401.00588).

Tenants share the engine. Inside a tenant the most important priority goes first. Its groups share what it gets, and the
requests of a group share what that gets. On each level the one with the least service goes next; equals go in order of
arrival. `GenerateRequest.share` names group and request; what they stand for is not known here.
"""

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from ..protocol import GenerateRequest
from .sequence import Sequence
from .shares import Path, Share

PROMPT_WEIGHT: Final = 1
OUTPUT_WEIGHT: Final = 2
"""An output token costs a step of its own."""


class FairQueue:
    """Inside a request: first come, first served, all choices of a prompt before the next prompt."""

    def __init__(self) -> None:
        self._root = Share[Sequence]()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return self._root.waiting

    def __iter__(self) -> Iterator[Sequence]:
        return self._root.sequences()

    def lines(self) -> Iterator[Iterator[Sequence]]:
        """Each tenant's waiting sequences, fairest tenant first. Ask anew after push, remove or charge."""
        return (tenant.sequences() for tenant in self._root.in_turn())

    def open(self, message: GenerateRequest) -> Path:
        """The shares of a request that begins; close() them when it has ended."""
        group, request = message.share
        path = [self._root]
        for name, priority in ((message.tenant, 0), (message.priority, message.priority), (group, 0), (request, 0)):
            path.append(path[-1].child(name, priority))
        for share in path:
            share.live += 1
        return tuple(path)

    def close(self, path: Path) -> None:
        """One of its requests has ended. A tenant or group keeps its debt as long as others beside it are live."""
        for share in path:
            share.live -= 1
            if not share.live:
                share.clear()
        _, tenant, priority, group, request = path
        if not request.live:
            group.children.pop(request.name, None)
        if not priority.live:
            tenant.children.pop(priority.name, None)

    def push(self, sequence: Sequence) -> None:
        for parent, share in pairwise(sequence.request.shares):
            if not share.waiting:
                parent.enlist(share, next(self._numbers))
            share.waiting += 1
        self._root.waiting += 1
        insort(sequence.request.shares[-1].line, sequence, key=_order)

    def remove(self, sequence: Sequence) -> None:
        line = sequence.request.shares[-1].line
        del line[bisect_left(line, sequence.order, key=_order)]
        self._root.waiting -= 1
        for parent, share in pairwise(sequence.request.shares):
            share.waiting -= 1
            if not share.waiting:
                parent.note_leaving(share)

    def charge(self, path: Path, service: int) -> None:
        """Book service, in weighted tokens, that a request is given."""
        for share in path:
            share.service += service

    def admit(self, path: Path, service: int) -> None:
        """Book the service that a sequence begins with."""
        self.charge(path, service)
        for parent, share in pairwise(path):
            parent.clock = max(parent.clock, share.service)


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order
