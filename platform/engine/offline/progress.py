"""A bar of finished prompts with the tokens generated per second: our own, or one of tqdm's that the caller brings."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

TITLE = "Processed prompts"
Advance = Callable[[int], None]
"""Called with the tokens of each finished prompt."""


@contextmanager
def progress_bar(total: int, shown: bool | Callable[..., Any]) -> Iterator[Advance]:
    """`shown`: False for no bar, or what makes a bar, as tqdm.tqdm does."""
    with _made(shown, total) if callable(shown) else _own(total, shown) as advance:
        yield advance


@contextmanager
def _own(total: int, shown: bool) -> Iterator[Advance]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[speed]}"), disable=not shown) as progress:
        task = progress.add_task(TITLE, total=total, speed="")
        speed = _speedometer()
        yield lambda tokens: progress.update(task, advance=1, speed=speed(tokens))


@contextmanager
def _made(make: Callable[..., Any], total: int) -> Iterator[Advance]:
    bar, speed = make(total=total, desc=TITLE, dynamic_ncols=True), _speedometer()

    def advance(tokens: int) -> None:
        bar.set_postfix_str(speed(tokens), refresh=False)
        bar.update(1)

    try:
        yield advance
    finally:
        bar.close()


def _speedometer() -> Callable[[int], str]:
    started, total = time.perf_counter(), 0

    def speed(tokens: int) -> str:
        nonlocal total
        total += tokens
        return f"{total / (time.perf_counter() - started):.0f} tokens/s"

    return speed
