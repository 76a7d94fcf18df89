"""ChainCheck: the audit log's chain is computed by one asker at a time, and the others get what that one finds."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from loraplex.registry.audit import Verdict

FRESH_SECONDS: Final = 10.0
"""So long a verdict answers whoever asks next: a long log takes seconds of a core."""


class ChainCheck:
    """`verify` blocks and reads the whole log. For one event loop."""

    def __init__(self, verify: Callable[[], Verdict], clock: Callable[[], float] = time.monotonic) -> None:
        self._verify, self._clock = verify, clock
        self._running: asyncio.Task[Verdict] | None = None
        self._found: tuple[float, Verdict] | None = None

    async def verdict(self) -> Verdict:
        """Of the whole chain, as it was at most FRESH_SECONDS ago."""
        if self._found is not None and self._clock() - self._found[0] < FRESH_SECONDS:
            return self._found[1]
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await asyncio.shield(self._running)

    async def _run(self) -> Verdict:
        """Goes on when the one who asked first has left."""
        try:
            verdict = await asyncio.to_thread(self._verify)
            self._found = self._clock(), verdict
            return verdict
        finally:
            self._running = None
