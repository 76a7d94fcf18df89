"""Watchdog: tells when the silence of an engine process is a fault. No torch.

The engine's loop says something twice a second. It is silent for longer only in a long step and while a kernel is
compiled. A process that computes is left alone for long. One that neither speaks nor computes is ended soon. No bound
grows: an engine that was slow once is watched as before.
"""

import signal
import time
from collections.abc import Callable
from typing import Final

from .vital_signs import Signs

STACKS_SIGNAL: Final = signal.SIGUSR1
"""Upon it the engine process writes to its standard error where each of its threads is."""
LOOK_SECONDS: Final = 0.5
MOST_SEEN: Final = 2 * LOOK_SECONDS
"""What one look counts at most. A watcher that was suspended or got no core itself has seen no silence meanwhile."""
UNRESPONSIVE_SECONDS: Final = 3.0
"""Without a message and without work: no new requests until it answers."""
IDLE_SECONDS: Final = 8.0
"""Without a message and without work: it hangs, or it was stopped."""
DEVICE_SECONDS: Final = 30.0
"""Without a message while a GPU computes: waiting for it looks like work."""
WORK_SECONDS: Final = 900.0
"""Without a message while the processor computes, a kernel is compiled, or the model is loaded."""


class Watchdog:
    """Of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looked = clock()
        self._most_silent, self._most_idle = WORK_SECONDS, WORK_SECONDS
        self._busy = False
        self.silent = 0.0
        """Seconds without a message that were observed."""
        self.idle = 0.0
        """Seconds of these without work."""

    def serve(self, on_gpu: bool) -> None:
        """The process has loaded the model. From now on it speaks twice a second."""
        self._most_silent, self._most_idle = DEVICE_SECONDS if on_gpu else WORK_SECONDS, IDLE_SECONDS

    def hear(self, busy: bool = False) -> None:
        """It said something. `busy`: it said that it may be silent until its next message, and why."""
        self.silent = self.idle = 0.0
        self._busy = busy

    def look(self, signs: Signs) -> str | None:
        """Every LOOK_SECONDS. Why the process must be ended, in words; None while all is well."""
        now = self._clock()
        seen, self._looked = min(now - self._looked, MOST_SEEN), now
        self.silent += seen
        self.idle += 0.0 if signs.working else seen
        if signs.stopped and self.idle >= IDLE_SECONDS:
            return f"it was stopped from outside and did not go on for {self.idle:.0f} s"
        if self.idle >= (WORK_SECONDS if self._busy else self._most_idle):
            return f"it neither answered nor computed for {self.idle:.0f} s"
        if self.silent >= (WORK_SECONDS if self._busy else self._most_silent):
            return f"it did not answer for {self.silent:.0f} s"
        return None

    @property
    def unresponsive(self) -> bool:
        return self.idle >= UNRESPONSIVE_SECONDS and not self._busy
