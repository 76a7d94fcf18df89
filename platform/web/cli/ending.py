"""How SIGTERM ends a word of the command line: at once, or in order."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

RAISED_AGAIN_SECONDS: Final = 0.01


def end_at_once(number: int, frame: FrameType | None) -> None:
    """A handler for where nothing needs putting in order. It raises nothing: imports and libraries in other languages
    turn an exception into another one, or drop it."""
    os._exit(128 + number)


def end_in_order_on_sigterm() -> None:
    """For words that write files and start processes: what is half done is removed on the way out."""
    sys.unraisablehook = _end_again
    signal.signal(signal.SIGTERM, _end)


@contextmanager
def at_once_on_sigterm() -> Iterator[None]:
    """While a word's modules are imported; in order from then on."""
    signal.signal(signal.SIGTERM, end_at_once)
    yield
    end_in_order_on_sigterm()


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _end_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised within a finalizer. An end that was lost so comes once more, a moment later."""
    if unraisable.exc_type is SystemExit:
        threading.Timer(RAISED_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(unraisable)
