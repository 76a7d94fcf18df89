"""Reconciler: brings the engine to the registry's desired state, at once after a change here, soon after others.

It waits for the engine. The desired state is read by others too (`database_watch.py`), which do not.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from loraplex.engine.ipc.client import AdapterError, EngineUnavailable
from loraplex.engine.protocol import AdapterSpec
from loraplex.registry.snapshot import DesiredAdapter, ResolvedAdapter, Snapshots

from .engine_door import EngineDoor

POLL_SECONDS: Final = 0.5

logger = logging.getLogger(__name__)


class Reconciler:
    """`revision` is the newest that the engine was brought to. `failures`: digest -> what the engine refused."""

    def __init__(self, engine: EngineDoor, snapshots: Snapshots) -> None:
        self._engine = engine
        self._snapshots = snapshots
        self._lock = asyncio.Lock()
        self._registered: dict[str, DesiredAdapter] = {}
        """By digest, as the engine was last told. A restarted engine is told again by its client."""
        self._visitors: Counter[str] = Counter()
        self._left: set[str] = set()
        """Digests of visits that have ended."""
        self.revision = -1
        self.failures: dict[str, str] = {}

    @property
    def in_step(self) -> bool:
        return self.revision == self._snapshots.current.revision

    async def poll(self) -> None:
        """Apply what is read anew, for ever."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._apply_changes()
            except Exception:
                logger.exception("the desired state cannot be applied")

    async def reconcile(self) -> None:
        """Read the newest desired state and apply it. What the engine cannot do now is tried again by `poll`."""
        await asyncio.to_thread(self._snapshots.refresh)
        await self._apply_changes()

    async def _apply_changes(self) -> None:
        if self._left or not self.in_step:
            async with self._lock:
                await self._apply()

    async def ensure(self, adapter: ResolvedAdapter) -> None:
        """Return when the engine knows this adapter. Raises AdapterError or EngineUnavailable."""
        if adapter.digest not in self._registered:
            async with self._lock:
                if adapter.digest not in self._registered:
                    await self._register(DesiredAdapter(adapter.digest, adapter.folder, pinned=False))

    @asynccontextmanager
    async def visit(self, adapter: DesiredAdapter) -> AsyncIterator[None]:
        """The engine knows this adapter meanwhile, whether the registry wants it or not; the next `reconcile` ends what
        it does not want. Raises AdapterError or EngineUnavailable."""
        self._visitors[adapter.digest] += 1
        try:
            async with self._lock:
                if adapter.digest not in self._registered or adapter.digest in self._left:
                    await self._register(adapter)
            yield
        finally:
            self._visitors -= Counter([adapter.digest])
            self._left.add(adapter.digest)

    async def _apply(self) -> None:
        snapshot = self._snapshots.current
        desired = {adapter.digest: adapter for adapter in snapshot.desired()}
        self.failures = {}
        try:
            for adapter in desired.values():
                await self._bring(adapter)
            for digest in self._unwanted(desired):
                await self._unregister(digest)
        except EngineUnavailable:
            return
        self.revision = snapshot.revision

    async def _bring(self, adapter: DesiredAdapter) -> None:
        """One adapter to its desired state; a refusal is noted and harms no other."""
        told = self._registered.get(adapter.digest)
        try:
            if told is None or told.folder != adapter.folder:
                await self._register(adapter)
            elif told.pinned != adapter.pinned:
                await self._engine.pin_adapter(adapter.digest, adapter.pinned)
                self._registered[adapter.digest] = adapter
        except AdapterError as error:
            logger.error("adapter %s: %s", adapter.digest[:12], error)
            self.failures[adapter.digest] = str(error)

    async def _register(self, adapter: DesiredAdapter) -> None:
        spec = AdapterSpec(digest=adapter.digest, path=str(adapter.folder), pinned=adapter.pinned)
        await self._engine.register_adapter(spec)
        self._registered[adapter.digest] = adapter

    def _unwanted(self, desired: Mapping[str, DesiredAdapter]) -> list[str]:
        """What the engine is to forget. A visit may have told it of an adapter without an answer."""
        self._left -= desired.keys()
        return list({*self._registered, *self._left} - desired.keys() - self._visitors.keys())

    async def _unregister(self, digest: str) -> None:
        try:
            await self._engine.unregister_adapter(digest)
        except AdapterError as error:
            logger.error("adapter %s: %s", digest[:12], error)
            self.failures[digest] = str(error)
        self._registered.pop(digest, None)
        self._left.discard(digest)
