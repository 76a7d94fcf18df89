"""How SIGTERM, and SIGHUP of a terminal that is closed, end a word of the command line: at once, or in order."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

RAISED_AGAIN_SECONDS: Final = 0.01


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler for where nothing needs putting in order. It raises nothing: imports and libraries in other languages
    turn an exception into another one, or drop it."""
    os._exit(128 + number)


def end_in_order() -> None:
    """For words that write files and start processes: what is half done is removed on the way out."""
    sys.unraisablehook = _end_again
    signal.signal(signal.SIGALRM, lambda _, frame: _end(signal.SIGTERM, frame))
    _listen(_end)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """While a word's modules are imported; in order from then on."""
    _listen(end_at_once)
    yield
    end_in_order()


def _listen(handler: Callable[[int, FrameType | None], None]) -> None:
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, handler)


def _end(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code is _end_again.__code__:  # from which an exception would be lost too
            _signal_again()
            return
        frame = frame.f_back
    sys.exit(128 + number)


def _end_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised within a finalizer. An end that was lost so comes once more, a moment later."""
    if unraisable.exc_type is SystemExit:
        _signal_again()
    else:
        sys.__unraisablehook__(unraisable)


def _signal_again() -> None:
    """No thread of Python's is started for it: this may run within the start of one."""
    signal.setitimer(signal.ITIMER_REAL, RAISED_AGAIN_SECONDS)
