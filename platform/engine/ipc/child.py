"""EngineChild: one life of the engine process, from spawn to exit. The client starts a new one when it ends."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from ..config import EngineConfig
from ..processes.link import ClientEnd
from ..processes.lost_threads import THREAD_LOST
from ..processes.spawn import EngineProcess
from ..processes.vital_signs import VitalSigns
from ..processes.watchdog import LOOK_SECONDS, STACKS_SIGNAL, Watchdog
from ..protocol import Busy, EngineFatal, EngineInfo, FromEngine, Shutdown, ToEngine

DRAIN_SECONDS = 1.0
"""For what the process sent just before it ended."""
STACKS_SECONDS = 1.0
"""For a process that hangs to write where its threads are."""
DEATH_SECONDS = 2.0
"""That a killed process has to end. One that waits for a broken device or disk may never do so."""

logger = logging.getLogger(__name__)


class EngineChild:
    """Passes messages between the process and the client, and ends a process that hangs."""

    def __init__(
        self, config: EngineConfig, on_message: Callable[[FromEngine], None], process: EngineProcess | None = None
    ) -> None:
        """`process`: one that has been started with `config`; None: `live` starts one."""
        self._config = config
        self._on_message = on_message
        self._link = ClientEnd(self._receive)
        self._process = process
        self._last_words: str | None = None
        self._last_heard: float | None = None
        self._watchdog = Watchdog()
        self._serving = False

    async def live(self) -> str:
        """Spawn, pass messages on until the process ends, and return why it ended."""
        try:
            self._process = self._process or EngineProcess(self._config)
            await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=self._process.connection)
        except OSError as error:
            self._link.close()
            return f"the engine process could not be started: {error}"
        if self._last_words is not None:
            # It was told to end before there was a process.
            self.kill(self._last_words)
        end = asyncio.create_task(self._process.wait())
        watch = asyncio.create_task(self._watch(self._process))
        try:
            await asyncio.wait((end, watch), return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._link.closed.wait()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            if self._process.returncode is None:
                self._process.kill()
            await asyncio.wait((end,), timeout=DEATH_SECONDS)
            self._link.close()
        return self._last_words or f"the engine process ended with {_exit_words(self._process.returncode)}"

    def send(self, message: ToEngine) -> None:
        """Without waiting: what cannot be sent now is for a process that has gone, and its end tells everyone."""
        self._link.send(message)

    async def stop(self, grace: float) -> None:
        """Ask it to end; `live` returns when it has, by force after `grace` seconds or while it still starts."""
        if not self._serving:
            self.kill("it was stopped while it started")
        self.send(Shutdown())
        if self._process is None or self._process.returncode is not None:
            return
        try:
            async with asyncio.timeout(grace):
                await self._process.wait()
        except TimeoutError:
            self.kill("it did not stop in time")

    def kill(self, reason: str) -> None:
        self._last_words = reason
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def silence(self) -> float:
        """Seconds since the last message; infinity before the first."""
        return float("inf") if self._last_heard is None else time.monotonic() - self._last_heard

    def responsive(self) -> bool:
        """Whether it answers, or does what may take long: a long step on a slow machine is no fault."""
        return not self._watchdog.unresponsive

    def _receive(self, messages: list[FromEngine]) -> None:
        self._last_heard = time.monotonic()
        self._watchdog.hear(busy=isinstance(messages[-1], Busy))
        for message in messages:
            if isinstance(message, EngineFatal):
                self._last_words = message.message
            elif isinstance(message, Busy):
                logger.info("the engine is busy: %s", message.what)
            else:
                if isinstance(message, EngineInfo):
                    self._serving = True
                    self._watchdog.serve(on_gpu=message.device != "cpu")
                self._on_message(message)

    async def _watch(self, process: EngineProcess) -> None:
        """Returns when the process has been ended because it hangs, even where it does not end."""
        vital_signs = VitalSigns(process.pid)
        while (fault := self._watchdog.look(vital_signs.look())) is None:
            await asyncio.sleep(LOOK_SECONDS)
        logger.error("the engine hangs: %s; its threads are here:", fault)
        self._last_words = fault
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(STACKS_SIGNAL)
        await asyncio.sleep(STACKS_SECONDS)
        self.kill(fault)
        await asyncio.sleep(DEATH_SECONDS)


def _exit_words(code: int | None) -> str:
    if code == THREAD_LOST:
        return "an error in one of its threads, which the log shows"
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
