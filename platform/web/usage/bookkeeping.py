"""The books in the background: usage is flushed to the ledger, crashed processes are settled, days are read anew."""

import asyncio
import logging
from typing import Final

from loraplex.registry.usage.ledger import Ledger
from loraplex.registry.usage.usage import SHADOW, Usage

from ..http.database_errors import log_failure
from ..observability.hourly_use import HourlyUse, first_day
from ..quotas.quotas import Quotas

FLUSH_SECONDS: Final = 0.5
ROUNDS: Final = 10
"""Flushes between two looks at what other processes have booked."""

logger = logging.getLogger(__name__)


class Bookkeeper:
    def __init__(self, ledger: Ledger, usage: Usage, quotas: Quotas) -> None:
        self._ledger, self._usage, self._quotas = ledger, usage, quotas

    def begin(self, hours: HourlyUse) -> None:
        """Before the first request: settle what crashed, learn what was used today, and in the last `hours`. Blocks."""
        settled = self._ledger.settle_gone()
        if settled:
            logger.warning("%d requests of a crashed server were recorded with unknown usage", settled)
        today = self._quotas.now().date().isoformat()
        self._quotas.note_day(today, self._usage.tokens_of_day(today))
        hours.restore(self._usage.hours_since(first_day(), without=SHADOW), self._quotas.snapshots.current)

    async def run(self) -> None:
        """For ever. While the database is unavailable everything is kept in memory and written later."""
        away = False
        while True:
            try:
                for _ in range(ROUNDS):
                    await asyncio.sleep(FLUSH_SECONDS)
                    await asyncio.to_thread(self._ledger.flush)
                await self._look_around()
                away = False
            except Exception as error:
                if not away:
                    log_failure(logger, "usage cannot be recorded now; it is kept in memory", error)
                away = True

    def end(self) -> None:
        """Book the rest. Blocks."""
        try:
            self._ledger.close()
        except Exception as error:
            log_failure(logger, "the last usage could not be recorded", error)

    async def _look_around(self) -> None:
        await asyncio.to_thread(self._ledger.settle_gone)
        today = self._quotas.now().date().isoformat()
        booked = await asyncio.to_thread(self._usage.tokens_of_day, today)
        self._quotas.note_day(today, booked)
