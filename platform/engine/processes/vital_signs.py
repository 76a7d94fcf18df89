"""VitalSigns: what the operating system says of a process that does not answer. No torch."""

from pathlib import Path
from typing import Final, NamedTuple

AT_WORK: Final = frozenset("RD")
"""States of a thread that computes, waits for a core, or waits for the disk."""
STOPPED: Final = frozenset("Tt")
STATE, USER_TICKS, SYSTEM_TICKS = 0, 11, 12
"""Fields of /proc/PID/stat behind the name."""


class Signs(NamedTuple):
    working: bool
    """It has computed since the last look, or would have if it had been given a core or its memory."""
    stopped: bool = False
    """By a signal or a debugger."""


class VitalSigns:
    """Of one process, on Linux. Elsewhere nothing is known, and every process counts as working."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._ticks = 0

    def look(self) -> Signs:
        try:
            stat = _stat(self._folder)
            ticks = int(stat[USER_TICKS]) + int(stat[SYSTEM_TICKS])
            computed, self._ticks = ticks > self._ticks, ticks
            return Signs(computed or self._wants_to(), stat[STATE] in STOPPED)
        except OSError:
            return Signs(working=True)

    def _wants_to(self) -> bool:
        return any(_stat(thread)[STATE] in AT_WORK for thread in (self._folder / "task").iterdir())


def _stat(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()
