"""What the bookkeeping of a step needs of a device: queues of work, events in them, and work recorded as a graph."""

from collections.abc import Callable
from typing import Protocol

import torch


class Event(Protocol):
    """A place in a stream."""

    def synchronize(self) -> None:
        """Wait until all that was enqueued before it is done."""


class Stream(Protocol):
    """Work runs in the order in which it was enqueued, some time later."""

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy of equal shapes. The host may change what it owns of both only after a later event."""

    def record(self) -> Event:
        """An event after all that was enqueued so far."""

    def wait(self, event: Event) -> None:
        """What is enqueued from now on runs after this event of another stream."""


class Graph(Protocol):
    def replay(self) -> None:
        """Enqueue all that was captured, with the addresses and numbers of then."""


Launch = Callable[[], None]
"""Enqueues the same kernels whenever it is called with the same GraphKey."""
Capture = Callable[[Launch], Graph]
"""Record what a launch enqueues, without running it."""
