"""Housekeeping: at the start and now and then, adapter files that no version wants go from the disk."""

import asyncio
import logging
from typing import Final

from loraplex.registry.files.sweep import SweepReport, sweep
from loraplex.registry.registry import Registry

from ..http.database_errors import log_failure

SWEEP_SECONDS: Final = 600.0

logger = logging.getLogger(__name__)


async def keep_house(registry: Registry) -> None:
    """For ever. What fails is tried again the next time."""
    while True:
        try:
            _log(await asyncio.to_thread(sweep, registry.database, registry.store))
        except Exception as error:
            log_failure(logger, "adapter files that nobody wants cannot be removed now", error)
        await asyncio.sleep(SWEEP_SECONDS)


def _log(report: SweepReport) -> None:
    if report.leftovers or report.orphans:
        logger.info("removed %d leftovers of uploads and %d unwanted files", report.leftovers, report.orphans)
    for digest in report.broken:
        logger.warning("the files of the adapter %s are missing or changed on the disk: upload them again", digest[:12])
    for digest in report.healed:
        logger.info("the files of the adapter %s are back", digest[:12])
