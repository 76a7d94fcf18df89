"""Housekeeping: at the start and now and then, adapter files that no version wants go from the disk."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from loraplex.registry.files.sweep import SweepReport, sweep
from loraplex.registry.registry import Registry

from ..http.database_errors import log_failure

SWEEP_SECONDS: Final = 600.0
MOST_NAMED: Final = 5

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
    if report.broken:
        words = "the files of %d adapters are missing or changed on the disk (%s): upload them again"
        logger.warning(words, len(report.broken), _some(report.broken))
    if report.healed:
        logger.info("the files of %d adapters are back (%s)", len(report.healed), _some(report.healed))


def _some(digests: Sequence[str]) -> str:
    """The first of them: a disk that is away breaks all at once."""
    more = ", …" if len(digests) > MOST_NAMED else ""
    return ", ".join(digest[:12] for digest in digests[:MOST_NAMED]) + more
