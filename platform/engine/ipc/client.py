"""EngineClient: the only door of the API process to the engine, and the supervisor of its process. No torch.

The engine may die at any moment: running requests then end with EngineUnavailable, new ones are refused with it, a new
process is started after growing pauses, and every adapter is registered anew before the state is READY again.
"""

import asyncio
import contextlib
import enum
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine

import msgspec

from ..config import EngineConfig
from ..processes.spawn import EngineProcess
from ..protocol import (
    AbortRequest,
    AdapterSpec,
    EngineInfo,
    EngineStatus,
    EvictAdapter,
    FromEngine,
    GenerateRequest,
    LoadAdapter,
    PinAdapter,
    Progress,
    RegisterAdapter,
    Reply,
    RequestFailed,
    RequestsStarted,
    ToEngine,
    Tokens,
    UnregisterAdapter,
)
from ..scheduler.waiting_queue import WaitingRequests
from .arrivals import Arrivals, ReadersInTurn
from .child import EngineChild

RESTART_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before a new process, by the number of short lives in a row; the last one repeats."""
STABLE_SECONDS = 60.0
"""An engine that lived this long was healthy."""
RETRY_AFTER_SECONDS = 2.0
OTHER_BASE = (
    "it has loaded another base than this server was started with: the model's files were changed since. "
    "Put them back, or restart the server"
)

Control = RegisterAdapter | UnregisterAdapter | LoadAdapter | EvictAdapter | PinAdapter

logger = logging.getLogger(__name__)


class EngineState(enum.StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"


class EngineUnavailable(Exception):
    """The engine is not there (any more). Try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = RETRY_AFTER_SECONDS) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineStartError(Exception):
    """The first start failed; the message is the engine's own."""


class RequestRejected(Exception):
    """The engine refused or gave up one request. `kind` and `param` as of RequestFailed."""

    def __init__(self, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.param = kind, param


class AdapterError(Exception):
    """The engine could not do what was asked of an adapter, in words. `unfit`: as of Reply."""

    def __init__(self, message: str, unfit: bool = False) -> None:
        super().__init__(message)
        self.unfit = unfit


class EngineClient:
    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[Progress], None] | None = None,
        started: EngineProcess | None = None,
    ) -> None:
        """`started`: a process with this configuration, which becomes the first one."""
        self.config = config
        self._started = started
        self.state = EngineState.STOPPED
        self.info: EngineInfo | None = None
        self.status: EngineStatus | None = None
        self.restarts = 0
        self._on_progress = on_progress
        self._adapters: dict[str, AdapterSpec] = {}
        self._streams: dict[str, Arrivals] = {}
        self._turns = ReadersInTurn()
        self._waiting = WaitingRequests(config.max_queue)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._call_ids = itertools.count()
        self._child: EngineChild | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._first_start: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the engine and return when it is ready. Raises EngineStartError with the engine's words."""
        self.state = EngineState.STARTING
        self._first_start = asyncio.get_running_loop().create_future()
        self._spawn(self._supervise())
        await self._first_start

    async def stop(self, grace: float = 5.0) -> None:
        """End the engine, by force after `grace` seconds. What runs ends with EngineUnavailable. Twice is no error."""
        self.state = EngineState.STOPPED
        unended = set(self._tasks)
        if self._child is not None:
            await self._child.stop(grace)
            # Not gather(): a cancelled stop must leave the work to the next one.
            if unended:
                _, unended = await asyncio.wait(unended, timeout=grace)
        for task in unended:
            task.cancel()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def heartbeat_age(self) -> float:
        """Seconds since anything was heard from the engine; infinity when there is none."""
        return float("inf") if self._child is None else self._child.silence()

    def ready(self) -> bool:
        """Whether requests are served."""
        return self.obstacle() is None

    def obstacle(self) -> str | None:
        """Why no requests are served, in words; None when they are."""
        if self.state is not EngineState.READY or self._child is None:
            return f"the engine is {self.state}"
        if not self._child.responsive():
            return f"the engine has not answered for {self._child.silence():.0f} s"
        return None

    def check_room(self, tenant: str) -> None:
        """Raises RequestRejected where the engine's queue has no place for one more request of the tenant."""
        words = self._waiting.refusal(tenant)
        if words is not None:
            raise RequestRejected("overloaded", words)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        """Tokens of all choices as they come; ends after the last choice. Closing the iterator aborts the request.

        Raises RequestRejected or EngineUnavailable, possibly after some tokens.
        """
        self._require_ready()
        self.check_room(request.tenant)
        assert request.request_id not in self._streams
        arrivals = self._streams[request.request_id] = Arrivals(self._turns)
        self._waiting.add(request.request_id, request.tenant)
        unfinished = request.params.n
        try:
            self._send(request)
            while unfinished:
                for tokens in await arrivals.get():
                    unfinished -= tokens.finish_reason is not None
                    yield tokens
        except (RequestRejected, EngineUnavailable):
            unfinished = 0
            raise
        finally:
            del self._streams[request.request_id]
            self._waiting.remove([request.request_id])
            if unfinished and self.state is EngineState.READY:
                self._abort(request.request_id)

    def end_choice(self, request_id: str, index: int) -> None:
        """Have the engine end one choice of a running request; its last message then says ABORT."""
        self._abort(request_id, index)

    def _abort(self, request_id: str, index: int | None = None) -> None:
        with contextlib.suppress(EngineUnavailable):
            self._send(AbortRequest(request_id=request_id, index=index))

    async def register_adapter(self, spec: AdapterSpec) -> None:
        """Make the digest known; the engine reads the files when the first request needs them."""
        self._adapters[spec.digest] = spec
        await self._call(RegisterAdapter(call_id=next(self._call_ids), spec=spec))

    async def unregister_adapter(self, digest: str) -> None:
        self._adapters.pop(digest, None)
        await self._call(UnregisterAdapter(call_id=next(self._call_ids), digest=digest))

    async def load_adapter(self, digest: str) -> None:
        await self._call(LoadAdapter(call_id=next(self._call_ids), digest=digest))

    async def evict_adapter(self, digest: str) -> None:
        await self._call(EvictAdapter(call_id=next(self._call_ids), digest=digest))

    async def pin_adapter(self, digest: str, pinned: bool) -> None:
        await self._call(PinAdapter(call_id=next(self._call_ids), digest=digest, pinned=pinned))
        if digest in self._adapters:
            self._adapters[digest] = msgspec.structs.replace(self._adapters[digest], pinned=pinned)

    async def _call(self, control: Control) -> None:
        """Send a control message and wait for its Reply. Raises AdapterError or EngineUnavailable."""
        self._require_ready()
        await self._exchange(control)

    async def _exchange(self, control: Control) -> None:
        future = self._replies[control.call_id] = asyncio.get_running_loop().create_future()
        try:
            self._send(control)
            reply = await future
        finally:
            del self._replies[control.call_id]
        if reply.error is not None:
            raise AdapterError(reply.error, reply.unfit)

    def _require_ready(self) -> None:
        if self.state is not EngineState.READY:
            raise EngineUnavailable(f"the engine is {self.state}; try again in a moment")

    def _send(self, message: ToEngine) -> None:
        if self._child is None:
            raise EngineUnavailable(f"the engine is {self.state}; try again in a moment")
        self._child.send(message)

    async def _supervise(self) -> None:
        short_lives = 0
        while self.state is not EngineState.STOPPED:
            await asyncio.sleep(RESTART_PAUSES[min(short_lives, len(RESTART_PAUSES) - 1)])
            born = time.monotonic()
            self._child = EngineChild(self.config, self._dispatch, self._started)
            self._started = None
            reason = await self._child.live()
            self._bury(reason)
            short_lives = 0 if time.monotonic() - born > STABLE_SECONDS else short_lives + 1

    def _bury(self, reason: str) -> None:
        """End everything that waited for the dead engine, and decide what comes next."""
        self._child, self.status = None, None
        lost = EngineUnavailable(f"the engine stopped while this request ran: {reason}")
        for arrivals in self._streams.values():
            arrivals.fail(lost)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(EngineUnavailable(reason))
        if self.state is EngineState.STOPPED:
            return
        assert self._first_start is not None
        if not self._first_start.done():
            self.state = EngineState.STOPPED
            self._first_start.set_exception(EngineStartError(reason))
            return
        logger.error("engine lost, starting it again: %s", reason)
        self.state = EngineState.RESTARTING
        self.restarts += 1

    def _dispatch(self, message: FromEngine) -> None:
        match message:
            case Tokens():
                if message.request_id in self._streams:
                    self._streams[message.request_id].put(message)
            case RequestsStarted():
                self._waiting.remove(message.request_ids)
            case RequestFailed():
                if message.request_id in self._streams:
                    rejected = RequestRejected(message.kind, message.message, message.param)
                    self._streams[message.request_id].fail(rejected)
            case EngineStatus():
                self.status = message
            case Reply():
                future = self._replies.get(message.call_id)
                if future is not None and not future.done():
                    future.set_result(message)
            case Progress():
                if self._on_progress is not None:
                    self._on_progress(message)
            case EngineInfo():
                self._take(message)

    def _take(self, info: EngineInfo) -> None:
        """Adapters were judged beside the base of the first start, and certificates measured."""
        if self.info is not None and info.base != self.info.base and self._child is not None:
            self._child.kill(OTHER_BASE)
            return
        self.info = info
        self._spawn(self._welcome())

    async def _welcome(self) -> None:
        """Register what was registered before, then serve."""
        for spec in list(self._adapters.values()):
            try:
                await self._exchange(RegisterAdapter(call_id=next(self._call_ids), spec=spec))
            except AdapterError as error:
                logger.error("adapter %s could not be registered again: %s", spec.digest[:12], error)
            except EngineUnavailable:
                return
        if self.state is EngineState.STOPPED:
            return
        self.state = EngineState.READY
        assert self._first_start is not None
        if not self._first_start.done():
            self._first_start.set_result(None)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
