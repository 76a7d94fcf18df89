"""What the bookkeeping of a step needs of a device: queues of work, events in them, and work recorded as a graph."""

from collections.abc import Callable
from typing import Protocol

from loraplex.lora.residency.page_copier import Event, Stream

__all__ = ["Capture", "Event", "Graph", "Launch", "Stream"]


class Graph(Protocol):
    def replay(self) -> None:
        """Enqueue all that was captured, with the addresses and numbers of then."""


Launch = Callable[[], None]
"""Enqueues the same kernels whenever it is called with the same GraphKey."""
Capture = Callable[[Launch], Graph]
"""Record what a launch enqueues, without running it."""
