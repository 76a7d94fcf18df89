"""FairQueue: which waiting sequence is next. Virtual token counters after Sheng et al. 2024 (arXiv 2401.00588).

Each tenant has a counter of the service it got, in weighted tokens; the waiting tenant with the least goes next. One
that comes back from idling starts at the least counter of those who wait: idling earns no credit.
"""

from bisect import insort
from collections.abc import Iterator
from itertools import chain
from typing import Final

from .sequence import Sequence

PROMPT_WEIGHT: Final = 1
OUTPUT_WEIGHT: Final = 2
"""An output token costs a step of its own."""


class FairQueue:
    """Inside a tenant: lower priority value first, then first come, first served."""

    def __init__(self) -> None:
        self._queues: dict[str, list[Sequence]] = {}
        self._service: dict[str, int] = {}
        self._last_to_leave: str | None = None

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Sequence]:
        return chain.from_iterable(self.lines())

    def lines(self) -> Iterator[list[Sequence]]:
        """Each tenant's waiting sequences, fairest tenant first. Ask anew after push, remove or charge."""
        return map(self._queues.__getitem__, sorted(self._queues, key=self._service.__getitem__))

    def push(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        if tenant not in self._queues:
            self._service[tenant] = max(self._service.get(tenant, 0), self._floor())
            self._queues[tenant] = []
        insort(self._queues[tenant], sequence, key=lambda waiting: waiting.order)

    def remove(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._queues[tenant].remove(sequence)
        if not self._queues[tenant]:
            del self._queues[tenant]
            self._last_to_leave = tenant

    def charge(self, tenant: str, service: int) -> None:
        """Book service, in weighted tokens, that a tenant is given."""
        self._service[tenant] += service

    def service(self, tenant: str) -> int:
        return self._service[tenant]

    def reset(self) -> None:
        """Nobody waits and nobody runs: all are equal again."""
        assert not self._queues
        self._service.clear()
        self._last_to_leave = None

    def _floor(self) -> int:
        """Where a tenant that was not waiting starts at least."""
        if self._queues:
            return min(self._service[tenant] for tenant in self._queues)
        return self._service[self._last_to_leave] if self._last_to_leave is not None else 0
