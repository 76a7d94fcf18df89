"""Start-up in steps: one line each with its time; NO_COLOR and terminals that are none are obeyed by rich."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from loraplex.engine.protocol import Progress

console = Console(highlight=False)


@contextmanager
def step(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    _print(what, time.perf_counter() - started)


def tell_progress(progress: Progress) -> None:
    """A stage of the engine's start."""
    _print(f"engine: {progress.stage}", progress.seconds)


def _print(what: str, seconds: float) -> None:
    console.print(f"[green]✓[/] {what} [dim]{seconds:.1f} s[/]")
