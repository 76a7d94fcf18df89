"""Processes from a fork server that has the named modules, and nothing that tests before it left in one."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext


@contextmanager
def fork_server(*modules: str) -> Iterator[ForkServerContext]:
    """Python keeps one fork server a process: whoever started it first would decide what all others have."""
    forkserver._forkserver._stop()
    context = get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    try:
        yield context
    finally:
        forkserver._forkserver._stop()
