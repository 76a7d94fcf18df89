"""Appender: records of lines that end at the same time reach the disk together."""

import asyncio

from loraplex.registry.batches.journal import Journal, Record, encode


class Appender:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def append(self, record: Record) -> None:
        """Return when it is on the disk. Raises what the disk has raised."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((encode(record), written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        await written

    async def settle(self) -> None:
        """Return when nothing is being written. Nobody appends any more."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting, []
            failure: Exception | None = None
            try:
                await asyncio.to_thread(self._journal.append, b"".join(record for record, _ in taken))
            except Exception as error:
                failure = error
            for _, written in taken:
                if written.done():
                    continue  # who waited was cancelled; the record holds
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)
            if failure is not None:
                return
