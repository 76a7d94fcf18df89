"""BatchRunner: the batches that this process runs, beside its users' requests."""

import asyncio
import logging
import time
from collections import Counter
from typing import Final

from starlette.types import ASGIApp

from loraplex.registry.batches.journal import Journal, JournalBusy
from loraplex.registry.batches.views import Batch

from ..http.database_errors import log_failure
from ..state import State
from .batch_run import BatchRun
from .gate import Gate
from .line_runner import LineRunner

LOOK_SECONDS: Final = 1.0
"""Between two looks for new batches."""
REST_SECONDS: Final = 10.0
"""Until a batch that could not go on is tried again."""
CLEAN_SECONDS: Final = 600.0
MOST_OF_TENANT: Final = 4
"""Batches of one tenant that run at once."""

logger = logging.getLogger(__name__)


class BatchRunner:
    """`app`: what its lines are sent to."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._state = state
        self._gate = Gate(state.settings.batch_concurrency, state.requests)
        self._lines = LineRunner(app, state, self._gate)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._tenants = Counter[str]()
        """How many of each run."""
        self._resting: dict[str, float] = {}
        """Batch -> when it may be tried again."""

    async def run(self) -> None:
        """Until the server stops. Then lines that run are broken off; the next start runs them."""
        await self._state.started.wait()
        tasks = [asyncio.create_task(work) for work in (self._gate.run(), self._begin_batches(), self._clean_up())]
        try:
            await self._state.stopping.wait()
        finally:
            for task in (*tasks, *self._running.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._running.values(), return_exceptions=True)

    async def _begin_batches(self) -> None:
        away = False
        while True:
            try:
                for batch in await asyncio.to_thread(self._state.registry.batches.unfinished):
                    if self._may_begin(batch):
                        await self._begin(batch)
                away = False
            except Exception as error:
                if not away:
                    log_failure(logger, "batches cannot be looked for now", error)
                away = True
            await asyncio.sleep(LOOK_SECONDS)

    def _may_begin(self, batch: Batch) -> bool:
        """Others of the tenant wait until one has ended; one that is to be cancelled does not."""
        if batch.id in self._running or time.monotonic() < self._resting.get(batch.id, 0):
            return False
        return self._tenants[batch.tenant] < MOST_OF_TENANT or batch.status == "cancelling"

    async def _begin(self, batch: Batch) -> None:
        try:
            journal = await asyncio.to_thread(self._state.registry.batches.journal, batch.id)
        except JournalBusy:
            return
        task = asyncio.create_task(self._run(batch, journal))
        self._running[batch.id] = task
        self._tenants[batch.tenant] += 1
        task.add_done_callback(lambda _: self._end(batch))

    def _end(self, batch: Batch) -> None:
        del self._running[batch.id]
        self._tenants[batch.tenant] -= 1

    async def _run(self, batch: Batch, journal: Journal) -> None:
        registry, settings = self._state.registry, self._state.settings
        try:
            await BatchRun(registry, settings, self._lines, batch, journal).run()
            self._resting.pop(batch.id, None)
        except Exception as error:
            log_failure(logger, f"the batch {batch.id} cannot go on now", error)
            self._resting[batch.id] = time.monotonic() + REST_SECONDS
        finally:
            journal.close()

    async def _clean_up(self) -> None:
        """Now and then: files that have expired, and what a process that died has left."""
        while True:
            try:
                await asyncio.to_thread(self._state.registry.files.clean_up)
                await asyncio.to_thread(self._state.registry.batches.clean_up)
            except Exception as error:
                log_failure(logger, "old files of batches cannot be removed now", error)
            await asyncio.sleep(CLEAN_SECONDS)
