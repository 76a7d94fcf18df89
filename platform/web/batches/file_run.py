"""run_file: each line of a file, answered in this process without a server. The answers are in the file's order."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from starlette.types import ASGIApp

from loraplex.registry.batches.journal import Record
from loraplex.registry.database.tables import DEFAULT_TENANT

from ..access.caller import Caller
from ..access.permissions import Permission
from ..settings.settings import Settings
from ..state import State
from .batches_api import ENDPOINTS
from .gate import Gate
from .line_runner import LineRunner
from .lines import Line, blocks_of, check_lines, read_lines

AHEAD: Final = 8
"""Lines that may have ended, for each that runs, while one before them runs on."""
OFFLINE: Final = Caller(DEFAULT_TENANT, "cli", frozenset({Permission.INFERENCE}))


def check_file(path: Path, state: State) -> int:
    """Its lines. ValueError says what is wrong with the file as a whole."""
    verdict = check_lines(_lines(path, state.settings), most_lines=1 << 62)
    if verdict.errors:
        more = len(verdict.errors) - 1
        raise ValueError(f"{path}: {verdict.errors[0].message}" + (f" ({more} more lines are wrong)" if more else ""))
    return verdict.total


async def run_file(
    app: ASGIApp, state: State, source: Path, file: BinaryIO, on_line: Callable[[bool], None]
) -> Counter[bool]:
    """How many lines were answered and how many refused. Each goes to `file` as soon as those before it have. `on_line`
    hears of each whether it was answered."""
    at_once, told = state.settings.batch_concurrency, Counter[bool]()
    gate = Gate(at_once, state.requests)
    lines = LineRunner(app, state, gate)
    letting_in = asyncio.create_task(gate.run())
    running: deque[asyncio.Task[Record]] = deque()

    async def take() -> None:
        record = await running[0]
        running.popleft()
        file.write(bytes(record.result) + b"\n")
        file.flush()
        told[record.succeeded] += 1
        on_line(record.succeeded)

    try:
        blocks = blocks_of(_lines(source, state.settings))
        while block := await asyncio.to_thread(next, blocks, None):
            for line in block:
                while len(running) >= at_once * AHEAD:
                    await take()
                running.append(asyncio.create_task(lines.run(line, lambda: OFFLINE)))
        while running:
            await take()
    finally:
        for task in (letting_in, *running):
            task.cancel()
        await asyncio.gather(letting_in, *running, return_exceptions=True)
    return told


def _lines(path: Path, settings: Settings) -> Iterator[Line]:
    return read_lines(path, ENDPOINTS, int(settings.max_body_bytes))
