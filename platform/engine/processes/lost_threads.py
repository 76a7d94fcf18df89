"""end_with_lost_threads: a process ends, in words, when one of its threads cannot start or go on. Otherwise whoever
waits for the work of that thread would wait for ever. No torch."""

import os
import queue
import sys
import threading
import traceback
from typing import Any, Final

THREAD_LOST: Final = 4
"""Exit code."""


def end_with_lost_threads() -> None:
    """Call once, early in a process that others supervise."""
    lost: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # A thread that has no memory for a frame can still call what is written in C.
    threading.excepthook = lost.put
    sys.unraisablehook = lost.put
    threading.Thread(target=_wait_for_the_first, args=(lost,), name="lost-threads", daemon=True).start()


def _wait_for_the_first(lost: "queue.SimpleQueue[Any]") -> None:
    failure = lost.get()
    while not _is_fatal(failure):
        sys.__unraisablehook__(failure)
        failure = lost.get()
    try:
        traceback.print_exception(failure.exc_type, failure.exc_value, failure.exc_traceback)
        print("A thread could not start or go on; the process ends.", file=sys.stderr, flush=True)
    finally:
        os._exit(THREAD_LOST)


def _is_fatal(failure: Any) -> bool:
    """What a thread raised, or failed to start with, and any want of memory. Other errors in finalizers are not."""
    in_thread = isinstance(failure, threading.ExceptHookArgs) or "in thread started by" in (failure.err_msg or "")
    return in_thread or isinstance(failure.exc_value, MemoryError)
