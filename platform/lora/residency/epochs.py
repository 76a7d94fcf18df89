"""Epochs: what memory was given away last. Who comes with an older number is told, before it reads another's.

Holds, and the order of jobs and of streams, see to it that nobody ever comes too late. This is the net below them: an
adapter's answer computed with another's weights would look like any other answer.

The epoch of a slot changes when its pages are given, taken back or filled anew. A request remembers the epochs of its
adapters, and they are compared as a step's batch is built. A request that lost a slot ends with an error
(`StepResult.stale`). Its neighbours go on, and the adapter is loaded again.
"""


class StaleError(RuntimeError):
    """Memory was given to somebody else while it was still in use: a mistake of this program."""


class Epochs:
    """Numbers grow from 1 and are never given twice, so one comparison tells whether anything was given since."""

    def __init__(self) -> None:
        self.newest = 0
        self._written = 0
        """The newest that a thread has begun to write."""

    def give(self) -> int:
        """Of what is given away now, or taken back. On the engine thread alone."""
        self.newest += 1
        return self.newest

    def begin_to_write(self, epoch: int) -> None:
        """On the thread that writes."""
        self._written = max(self._written, epoch)

    def check_unwritten(self, since: int, what: str) -> None:
        """StaleError where what was given away after `since` has been written, perhaps over `what`."""
        if self._written > since:
            raise StaleError(f"{what}: the memory is of epoch {self._written} by now, not {since}")
