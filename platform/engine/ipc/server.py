"""EngineServer: the engine process's loop. Messages in, a step of the core, messages out."""

import time
from collections.abc import Callable

from ..core import EngineCore
from ..field_types import ParameterError
from ..processes.link import EngineEnd
from ..protocol import (
    AbortRequest,
    EvictAdapter,
    FromEngine,
    GenerateRequest,
    LoadAdapter,
    PinAdapter,
    RegisterAdapter,
    Reply,
    RequestFailed,
    RequestsStarted,
    Shutdown,
    ToEngine,
    UnregisterAdapter,
)
from ..scheduler.scheduler import Overloaded
from .adapter_control import AdapterControl
from .compile_guard import CompileGuard

HEARTBEAT_SECONDS = 0.5
LOADING_MILLISECONDS = 1
"""Pause between steps while all work waits for adapters that load."""


class EngineServer:
    """The loop. Knows messages and the core; nothing of models."""

    def __init__(self, core: EngineCore, adapters: AdapterControl, link: EngineEnd, guard: CompileGuard) -> None:
        self._core = core
        self._adapters = adapters
        self._guard = guard
        self._link = link
        self._host_transfer: list[FromEngine] = []
        self._next_heartbeat = 0.0
        self._running = True

    def serve(self) -> None:
        """Run until Shutdown or until the parent is gone; what runs then ends with an abort."""
        while self._running:
            for message in self._link.receive(self._patience()):
                self._handle(message)
            self._host_transfer += self._adapters.poll()
            if self._core.has_work():
                self._step()
            self._beat()
            self._flush()
        for request_id in list(self._core.scheduler.request_table.requests):
            self._host_transfer += self._core.abort(request_id)
        self._flush()

    def _step(self) -> None:
        messages = self._core.step()
        if self._core.just_started:
            self._host_transfer.append(RequestsStarted(request_ids=self._core.just_started))
        self._host_transfer += messages

    def _flush(self) -> None:
        if self._host_transfer:
            self._link.send(self._host_transfer)
            self._host_transfer = []

    def _patience(self) -> int:
        """Milliseconds to wait for a message before the next step."""
        if self._core.has_work() or self._adapters.loading():
            return 0 if self._core.progressed else LOADING_MILLISECONDS
        return max(1, round((self._next_heartbeat - time.monotonic()) * 1000))

    def _handle(self, message: ToEngine) -> None:
        match message:
            case GenerateRequest():
                self._add(message)
            case AbortRequest():
                self._host_transfer += self._core.abort(message.request_id, message.index)
            case RegisterAdapter():
                self._answer(message.call_id, lambda: self._adapters.register(message.spec))
            case UnregisterAdapter():
                self._answer(message.call_id, lambda: self._adapters.unregister(message.digest))
            case PinAdapter():
                self._answer(message.call_id, lambda: self._adapters.pin(message.digest, message.pinned))
            case EvictAdapter():
                self._answer(message.call_id, lambda: self._adapters.evict(message.digest))
            case LoadAdapter():
                self._load(message)
            case Shutdown():
                self._running = False

    def _add(self, request: GenerateRequest) -> None:
        try:
            self._host_transfer += self._core.add(request)
        except ValueError as error:
            self._refuse(request, "invalid", error)
        except Overloaded as error:
            self._refuse(request, "overloaded", error)

    def _refuse(self, request: GenerateRequest, kind: str, error: Exception) -> None:
        param = error.parameter if isinstance(error, ParameterError) else None
        self._host_transfer.append(
            RequestFailed(request_id=request.request_id, kind=kind, message=str(error), param=param)
        )

    def _answer(self, call_id: int, action: Callable[[], None]) -> None:
        error = None
        try:
            action()
        except ValueError as refused:
            error = str(refused)
        self._host_transfer.append(Reply(call_id=call_id, error=error))

    def _load(self, message: LoadAdapter) -> None:
        try:
            self._adapters.load(message.call_id, message.digest)
        except ValueError as error:
            self._host_transfer.append(Reply(call_id=message.call_id, error=str(error)))

    def _beat(self) -> None:
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            status = self._core.status()
            status.late_compilations = self._guard.late
            self._host_transfer.append(status)
