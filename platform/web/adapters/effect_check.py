"""EffectCheck: the last question of the preflight: does the engine answer otherwise with this adapter than without it?

Weights that look good may still come to nothing, in this base or as it is served. So before an adapter becomes a
version, one short prompt runs with it and, in the same steps, twice without it. A model that generates no text is asked
for the mean of its hidden states instead of log-probabilities. The requests are ordinary ones of the
uploader's tenant, behind all its others; nothing counts them, and the engine then forgets what it need not know.
"""

import asyncio
import math
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loraplex.engine.ipc.client import AdapterError, EngineUnavailable, RequestRejected
from loraplex.engine.pooling.vectors import from_wire
from loraplex.engine.pooling.wanted import Pooling, PoolingKind
from loraplex.engine.protocol import LAST, AdapterRef, GenerateRequest
from loraplex.engine.sampling_params import SamplingParams
from loraplex.registry.files.artifacts import ArtifactStore
from loraplex.registry.files.preflight import Prepared
from loraplex.registry.report import Finding, Summary
from loraplex.registry.snapshot import DesiredAdapter

from .engine_door import EngineDoor
from .reconciler import Reconciler

CHECK: Final = "effect"
LOGPROBS, HIDDEN = "log-probabilities", "hidden states"
PATIENCE: Final = 10.0
"""Seconds that an upload waits for a busy engine, and for other uploads before it."""
BEFORE, AFTER = 8, 16
"""Tokens from all over the vocabulary, before and after those that the adapter is about."""
NOT_HERE: Final = Finding(
    CHECK,
    "warn",
    "its weights were checked, but its logits were not compared with the base's: no engine is running here",
    "add it beside a running server, or name one with --server: it compares them before it serves the adapter",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Numbers of the prompt: of the base, of the base once more, with the adapter."""

    base: Sequence[float]
    again: Sequence[float]
    adapted: Sequence[float]
    what: str
    """These numbers, in words."""
    length: int
    """Tokens of the prompt."""

    @property
    def change(self) -> float:
        return max(_largest_difference(row, self.adapted) for row in (self.base, self.again))

    @property
    def noise(self) -> float:
        """What two rows of the base differ by."""
        return _largest_difference(self.base, self.again)


class EffectCheck:
    """`vocab_size`: of the base. For one event loop."""

    def __init__(self, engine: EngineDoor, reconciler: Reconciler, store: ArtifactStore, vocab_size: int) -> None:
        self._engine, self._reconciler, self._store, self._vocab_size = engine, reconciler, store, vocab_size
        self._turn = asyncio.Lock()

    async def judge(self, ready: Prepared, tenant: str) -> Finding:
        """What was seen of an adapter that passed all other checks, or why the engine will never serve it; a warning
        where it could not be seen in time.

        Raises UploadMissing, StorageFull.
        """
        summary = ready.report.summary
        assert summary is not None
        try:
            async with asyncio.timeout(PATIENCE), self._turn:
                return self._finding(summary, await self._compare(ready, summary, tenant))
        except TimeoutError:
            return _unseen(f"it was too busy for {PATIENCE:.0f} s")
        except AdapterError as error:
            return _unfit(str(error)) if error.unfit else _unseen(str(error))
        except (EngineUnavailable, RequestRejected) as error:
            return _unseen(str(error))

    async def _compare(self, ready: Prepared, summary: Summary, tenant: str) -> Seen:
        prompt, adapters = self._prompt(summary), [AdapterRef(digest=summary.digest)]
        async with self._staged(ready) as folder:
            async with self._reconciler.visit(DesiredAdapter(summary.digest, folder, pinned=False)):
                await self._engine.load_adapter(summary.digest)
                base, again, adapted = await self._ask_all([[], [], adapters], prompt, tenant)
                seen = Seen(base, again, adapted, HIDDEN if self._is_silent else LOGPROBS, len(prompt))
            await self._reconciler.reconcile()
            return seen

    @asynccontextmanager
    async def _staged(self, ready: Prepared) -> AsyncIterator[Path]:
        """A folder that goes in the end, also where this is given up while a thread makes it."""
        making = asyncio.ensure_future(asyncio.to_thread(self._store.stage, ready.config, ready.weights))
        try:
            yield await asyncio.shield(making)
        finally:
            await asyncio.to_thread(self._store.discard, await making)

    async def _ask_all(
        self, rows: Sequence[list[AdapterRef]], prompt: list[int], tenant: str
    ) -> Sequence[Sequence[float]]:
        """Sent together, so that they share their steps. The first failure ends all."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(adapters, prompt, tenant)) for adapters in rows]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, adapters: list[AdapterRef], prompt: list[int], tenant: str) -> Sequence[float]:
        asked = SamplingParams() if self._is_silent else SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=0)
        request = GenerateRequest(
            request_id=f"effect-check-{uuid.uuid4().hex}",
            prompt_token_ids=prompt,
            params=asked,
            pooling=Pooling(kind=PoolingKind.MEAN) if self._is_silent else None,
            adapters=adapters,
            tenant=tenant,
            cache_salt=f"{tenant}\0",
            priority=LAST,
        )
        found: list[float] = []
        async with aclosing(self._engine.generate(request)) as stream:
            async for tokens in stream:
                found += [entry.logprob for entry in tokens.prompt_logprobs or () if entry is not None]
                found += [] if tokens.pooled is None else from_wire(tokens.pooled).tolist()
        if not found or (request.pooling is None and len(found) != len(prompt) - 1):
            raise EngineUnavailable("the engine stopped before the prompt was processed")
        return found

    @property
    def _is_silent(self) -> bool:
        info = self._engine.info
        return info is not None and bool(info.why_silent)

    def _prompt(self, summary: Summary) -> list[int]:
        """Its own tokens are in it as such that are read and as such that are foretold; invocation tokens come before
        them, as what stands before these is the base's."""
        count = BEFORE + AFTER
        size = min(self._vocab_size, summary.vocab_size or self._vocab_size)
        spread = [(2 * at + 1) * size // (2 * count) for at in range(count)]
        invocation = summary.invocation_tokens
        told = [token for token in summary.probe_tokens if token < size]
        after = [token for token in [*told, *spread[BEFORE:]] if token not in invocation]
        return [*spread[:BEFORE], *invocation, *after]

    def _finding(self, summary: Summary, seen: Seen) -> Finding:
        what, run = seen.what, f"the engine ran a prompt of {seen.length} tokens with and without it"
        if not all(map(math.isfinite, (*seen.base, *seen.again))):
            return _unseen(f"the base itself gave {what} that are not finite")
        if not all(map(math.isfinite, seen.adapted)):
            message = f"{run}: with it, {what} are not finite"
            return Finding(CHECK, "fail", message, "training diverged: use an earlier checkpoint")
        if seen.change > seen.noise:
            return Finding(CHECK, "pass", f"{run}: {what} differ by up to {seen.change:.2g}")
        if summary.vocab_size not in (0, self._vocab_size):
            words = f"{run}: {what} are the same, but it knows {summary.vocab_size:,} tokens"
            return Finding(CHECK, "pass", f"{words} and the base {self._vocab_size:,}")
        same = f", but for {seen.noise:.2g}, as between two runs without it" if seen.noise else ""
        changed = HIDDEN if what == HIDDEN else "logits"
        message = f"the adapter does not change the {changed}: {run}, and {what} are the same{same}"
        return Finding(
            CHECK, "fail", message, "its changes have no effect on this base: train it longer, or train other modules"
        )


def _largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _unseen(why: str) -> Finding:
    message = f"its weights were checked, but the engine did not compare its logits with the base's: {why}"
    return Finding(CHECK, "warn", message, "upload it again when the engine is less busy; files are not sent twice")


def _unfit(why: str) -> Finding:
    message = f"the engine cannot serve it here: {why}"
    return Finding(CHECK, "fail", message, "train it differently, or upload it to a server with other settings")
