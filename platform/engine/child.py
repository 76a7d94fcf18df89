"""EngineChild: one life of the engine process, from spawn to exit. The client starts a new one when it ends."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from .config import EngineConfig
from .link import ClientEnd
from .protocol import EngineFatal, EngineInfo, FromEngine, Shutdown, ToEngine

HUNG_SECONDS = 60.0
"""Silence, beyond ten times the longest seen, after which a serving process is killed. Loading may take longer."""
WATCH_SECONDS = 1.0
DRAIN_SECONDS = 1.0
"""For what the process sent just before it ended."""
MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Weights on huge pages, where the system has them: fewer page walks for the model and all that runs between its steps
(measured: a twentieth off one stream's time per token). A value the user has set stays."""


class EngineChild:
    """The process inherits one end of a socket pair that nobody else can reach."""

    def __init__(self, config: EngineConfig, on_message: Callable[[FromEngine], None]) -> None:
        self._config = config
        self._on_message = on_message
        self._link = ClientEnd(self._receive)
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: str | None = None
        self._last_heard: float | None = None
        self._longest_silence = 0.0
        self._serving = False

    async def live(self) -> str:
        """Spawn, pass messages on until the process ends, and return why it ended."""
        try:
            self._process = await self._start()
        except OSError as error:
            self._link.close()
            return f"the engine process could not be started: {error}"
        if self._last_words is not None:
            # It was told to end before there was a process.
            self.kill(self._last_words)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._config) + b"\n")
        watch = asyncio.create_task(self._watch())
        try:
            code = await self._process.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._link.closed.wait(), DRAIN_SECONDS)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            self._link.close()
        return self._last_words or f"the engine process ended with {_exit_words(code)}"

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
            await asyncio.wait_for(self._process.wait(), grace)
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

    def lively(self) -> bool:
        """Whether it answers about as often as it did before; a long step on a slow machine is no illness."""
        return self.silence() < 5.0 + 2 * self._longest_silence

    def _receive(self, messages: list[FromEngine]) -> None:
        now = time.monotonic()
        if self._last_heard is not None and self._serving:
            self._longest_silence = max(self._longest_silence, now - self._last_heard)
        self._last_heard = now
        for message in messages:
            if isinstance(message, EngineFatal):
                self._last_words = message.message
            else:
                self._serving = self._serving or isinstance(message, EngineInfo)
                self._on_message(message)

    async def _start(self) -> asyncio.subprocess.Process:
        """The process, with the other end of our link."""
        ours, theirs = socket.socketpair()
        with theirs:
            await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=ours)
            descriptor = theirs.fileno()
            command = (sys.executable, "-m", "loraplex.engine.process", str(descriptor))
            return await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, pass_fds=(descriptor,), env={**MEMORY, **os.environ}
            )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            limit = HUNG_SECONDS + 10 * self._longest_silence
            if self._serving and self.silence() > limit:
                self.kill(f"the engine gave no sign of life for {limit:.0f} s")


def _exit_words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
