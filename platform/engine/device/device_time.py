"""DeviceTime: how long a device was at the steps it was given, by its own clock."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Moment(Protocol):
    """A place in the work of the device, set now and reached when all that was enqueued before is done."""

    def reached(self) -> bool: ...

    def seconds_until(self, later: Any) -> float:
        """By the device's clock; both are reached."""


class DeviceTime:
    """Between the two moments of a span an idle device that waits for the host counts as a busy one, so nothing but
    launches may lie there; an idle device reaches the first as it is set, a busy one when the step before has ended.
    """

    def __init__(self, mark: Callable[[], Moment]) -> None:
        self._mark = mark
        self._spans: deque[tuple[Moment, Moment]] = deque()

    @contextmanager
    def span(self) -> Iterator[None]:
        """Around the launches of a step; one that fails does not count."""
        begin = self._mark()
        yield
        self._spans.append((begin, self._mark()))

    def take(self) -> float:
        """Seconds of the spans that have ended since it was last asked. Waits for nothing."""
        seconds = 0.0
        while self._spans and self._spans[0][1].reached():
            begin, end = self._spans.popleft()
            seconds += begin.seconds_until(end)
        return seconds
