"""BatchRun: one batch from where its journal left it to its end."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec

from loraplex.registry.batches.journal import Journal
from loraplex.registry.batches.views import Batch
from loraplex.registry.database.tables import utc_now
from loraplex.registry.registry import Registry

from ..access.caller import Caller
from ..http.off_loop import finished_in_thread
from ..settings.settings import Settings
from .answers import BatchError
from .appender import Appender
from .callers import NoCaller, caller_of_batch
from .line_runner import LineRunner
from .lines import Line, blocks_of, check_lines, read_lines
from .outputs import Outputs

LOOK_SECONDS: Final = 0.5
"""Between two looks at the batch; in them, what has run is booked."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a batch ends: a status of registry's ENDED, and why."""

    status: str
    errors: list[BatchError] = field(default_factory=list)


class BatchRun:
    """`run()` once, by who holds the journal. Whatever it raises, another run goes on from the journal."""

    def __init__(
        self, registry: Registry, settings: Settings, lines: LineRunner, batch: Batch, journal: Journal
    ) -> None:
        self._registry, self._settings, self._lines = registry, settings, lines
        self._id, self._journal = batch.id, journal
        self._batch = batch
        self._caller: Caller | None = None
        self._done = set[int]()

    async def run(self) -> None:
        self._done = await finished_in_thread(self._journal.recover)
        self._batch = await finished_in_thread(self._book)
        if not self._batch.has_ended:
            ending = await self._work()
            await finished_in_thread(lambda: self._end(ending))
        await finished_in_thread(self._journal.remove)

    async def _work(self) -> Ending:
        if self._batch.status == "validating":
            errors = await finished_in_thread(self._check)
            if errors:
                return Ending("failed", errors)
        if self._batch.status == "in_progress":
            return await self._run_lines()
        return Ending("cancelled" if self._batch.status == "cancelling" else "completed")

    def _check(self) -> list[BatchError]:
        """Why none of its lines can run."""
        try:
            verdict = check_lines(self._read(), self._settings.max_batch_lines)
        except FileNotFoundError:
            return [BatchError("file_lost", "The input file's bytes are missing in the artifact store.")]
        if not verdict.errors:
            self._batch = self._registry.batches.begin(self._id, verdict.total)
        return verdict.errors

    async def _run_lines(self) -> Ending:
        appender = Appender(self._journal)
        feeding: asyncio.Task[None] | None = None
        try:
            while True:
                ending = await finished_in_thread(self._look)
                if ending is not None:
                    return ending
                if feeding is None:
                    feeding = asyncio.create_task(self._feed(appender))
                elif feeding.done():
                    feeding.result()
                    return Ending("completed")
                await asyncio.wait({feeding}, timeout=LOOK_SECONDS)
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            await appender.settle()

    async def _feed(self, appender: Appender) -> None:
        """Each line that has no record yet."""
        places = asyncio.Semaphore(self._settings.batch_concurrency)

        async def run(line: Line) -> None:
            try:
                record = await self._lines.run(line, self._whose, self._id)
                await appender.append(record)
            finally:
                places.release()

        blocks = blocks_of(self._read())
        async with asyncio.TaskGroup() as group:
            while block := await asyncio.to_thread(next, blocks, None):
                for line in block:
                    if line.number not in self._done:
                        await places.acquire()
                        group.create_task(run(line))

    def _look(self) -> Ending | None:
        """Book what has run. An ending, where it is not for the lines to end it."""
        self._batch = self._book()
        if self._batch.status == "cancelling":
            return Ending("cancelled")
        if self._batch.expires_at <= utc_now():
            return Ending("expired")
        try:
            self._caller = caller_of_batch(self._registry, self._batch, self._settings.no_api_key)
        except NoCaller as gone:
            return Ending("failed", [BatchError(gone.code, str(gone))])
        return None

    def _end(self, ending: Ending) -> None:
        batches = self._registry.batches
        if ending.status == "completed" and batches.finalize(self._id).status == "cancelling":
            ending = Ending("cancelled")
        self._batch = self._book()
        seconds = self._batch.output_seconds or self._settings.file_days * 86400
        outputs = Outputs(self._registry.store, self._batch, utc_now() + timedelta(seconds=seconds))
        output, error, unrun = outputs.write(self._journal, self._unrun() if ending.status == "expired" else ())
        errors = [msgspec.to_builtins(error) for error in ending.errors]
        batches.end(self._id, ending.status, output=output, error=error, errors=errors, unrun=unrun)

    def _unrun(self) -> Iterator[Line]:
        done = {record.line for record in self._journal.records()}
        return (line for line in self._read() if line.number not in done)

    def _book(self) -> Batch:
        return self._registry.batches.book(self._id, self._journal)

    def _read(self) -> Iterator[Line]:
        path = self._registry.store.files / self._batch.input_file_id
        return read_lines(path, [self._batch.endpoint], int(self._settings.max_body_bytes))

    def _whose(self) -> Caller:
        assert self._caller is not None, "it was looked at before the first line"
        return self._caller
