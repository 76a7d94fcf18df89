"""ShadowPool: the copies that run now. A few at once, and none while users wait."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from ..adapters.engine_door import EngineDoor
from ..observability.metrics import Metrics, adapter_label
from .tallies import Lane, Tallies

MOST: Final = 2
FREE_SHARE: Final = 0.25
"""Of the KV blocks must be free for a copy to begin or go on."""
LOOK_SECONDS: Final = 0.25


class ShadowPool:
    def __init__(self, engine: EngineDoor, tallies: Tallies, metrics: Metrics) -> None:
        self._engine, self._tallies, self._counter = engine, tallies, metrics.shadow_requests
        self.metrics = Metrics(metrics.labels[0])
        """Of copies alone: they must not show among the users' figures."""
        self._running: dict[asyncio.Task[None], tuple[Lane, str]] = {}

    def offer(self, lane: Lane, digest: str, size: int, work: Coroutine[Any, Any, None]) -> None:
        """Run a copy with the adapter of `digest` and `size` bytes, or drop it when there is no room for it."""
        if len(self._running) >= MOST or self._is_busy() or not self._has_room(digest, size):
            work.close()
            self.count(lane, "dropped")
            return
        task = asyncio.create_task(work)
        self._running[task] = lane, digest
        task.add_done_callback(self._running.pop)

    def count(self, lane: Lane, outcome: str) -> None:
        """`ok`, `error` or `dropped`."""
        self._counter.labels(adapter_label(lane.tenant, lane.adapter), outcome).inc()
        if outcome == "dropped":
            self._tallies.copies(lane).dropped += 1

    async def run(self, stopping: asyncio.Event) -> None:
        """Until the server stops: make room as soon as users wait. Then end all copies."""
        try:
            while not stopping.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await stopping.wait()
                if self._running and self._is_busy():
                    await self._drop_all()
        finally:
            await self._drop_all()

    async def _drop_all(self) -> None:
        for task, (lane, _) in list(self._running.items()):
            if task.cancel():
                self.count(lane, "dropped")
        await asyncio.gather(*self._running, return_exceptions=True)

    def _is_busy(self) -> bool:
        """Whether a user's request waits, or soon would."""
        status, info = self._engine.status, self._engine.info
        if status is None or info is None or not self._engine.ready():
            return True
        ours = {digest for _, digest in self._running.values()}
        waiting = status.waiting - sum(one.waiting for one in status.adapters if one.digest in ours)
        return waiting > 0 or status.free_blocks < FREE_SHARE * info.num_blocks

    def _has_room(self, digest: str, size: int) -> bool:
        """A copy pushes no adapter out of memory."""
        status, info = self._engine.status, self._engine.info
        if status is None or info is None:
            return False
        resident = any(one.digest == digest and one.state == "resident" for one in status.adapters)
        full = sum(one.state == "resident" for one in status.adapters) >= info.max_loaded_adapters
        return resident or (not full and status.adapter_bytes_used + size <= info.adapter_memory)
