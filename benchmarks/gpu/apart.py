"""Figures measured in a process of their own: what ends or hangs it, or breaks its device, costs no other row."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Final

import torch

from ..report import Row
from .figure import Figure, Stage
from .measure import OUT_OF_TIME, failed_row, is_broken, measure, unmeasured_row

Open = Callable[[], tuple[Sequence[Figure], Stage]]
"""The figures and where they are measured, made in the process that measures them: it must be picklable."""
GRACE_SECONDS: Final = 20.0
"""By which the last figure of a part may outlast the part's time."""
LEAST_PATIENCE_SECONDS: Final = 45.0
"""For a figure of no known length: a few kernels to compile, the device to open."""
PATIENCE_RATIO: Final = 2.5
"""Times what a figure is said to take, after which it counts as hung."""
END_SECONDS: Final = 10.0
"""That a process which was killed may take to give the device back."""
NEXT_PROCESS: Final = None
"""Sent after a row that left the device unusable."""


def measure_apart(
    open_part: Open, figures: Sequence[Figure], allowed_seconds: float, publish: Callable[[Row], None],
    least_patience: float = LEAST_PATIENCE_SECONDS,
) -> int:  # fmt: skip
    """As `measure`, of the figures that `open_part` makes, beginning a new process at the figure after one that ended
    the last. Returns how many were wrong or failed."""
    broken, done, end = 0, 0, time.monotonic() + allowed_seconds

    def take(row: Row) -> None:
        nonlocal broken, done
        broken, done = broken + is_broken(row), done + 1
        publish(row)

    while done < len(figures):
        left = end - time.monotonic()
        if left <= 0:
            for figure in figures[done:]:
                take(unmeasured_row(figure, OUT_OF_TIME))
            break
        words = _follow(partial(_work, open_part, done, left), figures[done:], end, take, least_patience)
        if words is not None and done < len(figures):
            take(failed_row(figures[done], words))
    return broken


def start_server() -> None:
    """What every part's process is made from has imported what they need, before the time of the first part counts."""
    process = _context().Process(target=int)
    process.start()
    process.join()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.gpu.catalog"])
    return context


def _follow(
    work: Callable[[Connection], None], figures: Sequence[Figure], end: float, take: Callable[[Row], None],
    least_patience: float,
) -> str | None:  # fmt: skip
    """The rows of one process, which are of `figures`; returns what ended it before the last of them, in words."""
    context = _context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs,))
    process.start()
    theirs.close()
    try:
        for figure in figures:
            seconds = _patience(figure, end - time.monotonic(), least_patience)
            if not ours.poll(seconds):
                return f"it was ended after {seconds:.0f} s without a result"
            row = ours.recv()
            if row is NEXT_PROCESS:
                break
            take(row)
    except EOFError:
        process.join(END_SECONDS)
        return f"its process ended with {_ending(process.exitcode)}"
    finally:
        ours.close()
        process.kill()
        process.join(END_SECONDS)
    return None


def _patience(figure: Figure, left: float, least: float) -> float:
    return max(0.0, min(max(least, PATIENCE_RATIO * figure.seconds), left + GRACE_SECONDS))


def _ending(status: int | None) -> str:
    return f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"


def _work(open_part: Open, first: int, seconds: float, connection: Connection) -> None:
    figures, stage = open_part()

    def send(row: Row) -> None:
        connection.send(row)
        if is_broken(row) and not _usable(stage.device):
            connection.send(NEXT_PROCESS)
            raise SystemExit

    measure(figures[first:], stage, seconds, send)


def _usable(device: torch.device) -> bool:
    """Some errors of a kernel, an illegal access for one, make every later call of the process fail."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except Exception:  # torch has had several types for it
        return False
    return True
