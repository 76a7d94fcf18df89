"""EngineChild: one life of the engine process, from spawn to exit. The client starts a new one when it ends."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from .config import EngineConfig
from .protocol import EngineFatal, EngineInfo, FromEngine, Shutdown, ToEngine

HUNG_SECONDS = 60.0
"""Silence, beyond ten times the longest seen, after which a serving process is killed. Loading may take longer."""
WATCH_SECONDS = 1.0


class EngineChild:
    """Frames in either direction are msgpack lists of protocol messages over a private Unix socket."""

    def __init__(self, config: EngineConfig, folder: Path, on_message: Callable[[FromEngine], None]) -> None:
        self._config = config
        self._endpoint = f"ipc://{folder}/engine-{time.monotonic_ns()}.sock"
        self._on_message = on_message
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[FromEngine])
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: str | None = None
        self._last_heard: float | None = None
        self._longest_silence = 0.0
        self._serving = False

    async def live(self) -> str:
        """Spawn, pass messages on until the process ends, and return why it ended."""
        self._socket.set_hwm(0)
        self._socket.bind(self._endpoint)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loraplex.engine.process", self._endpoint, stdin=asyncio.subprocess.PIPE
        )
        if self._last_words is not None:
            # It was told to end before there was a process.
            self.kill(self._last_words)
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._config) + b"\n")
        tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch())]
        try:
            code = await self._process.wait()
            await self._drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            self._context.destroy(linger=0)
        return self._last_words or f"the engine process ended with {_exit_words(code)}"

    async def send(self, message: ToEngine) -> None:
        """Without waiting: what cannot be sent now is for a process that has gone, and its end tells everyone."""
        with contextlib.suppress(zmq.ZMQError):
            await self._socket.send(self._encoder.encode([message]), zmq.NOBLOCK)

    async def stop(self, grace: float) -> None:
        """Ask it to end; `live` returns when it has, by force after `grace` seconds or while it still starts."""
        if not self._serving:
            self.kill("it was stopped while it started")
        await self.send(Shutdown())
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

    async def _listen(self) -> None:
        while True:
            self._receive(await self._socket.recv())

    async def _drain(self) -> None:
        """Read what the process sent just before it ended."""
        with contextlib.suppress(TimeoutError, zmq.ZMQError):
            while True:
                self._receive(await asyncio.wait_for(self._socket.recv(), 0.1))

    def _receive(self, frame: bytes) -> None:
        now = time.monotonic()
        if self._last_heard is not None and self._serving:
            self._longest_silence = max(self._longest_silence, now - self._last_heard)
        self._last_heard = now
        for message in self._decoder.decode(frame):
            if isinstance(message, EngineFatal):
                self._last_words = message.message
            else:
                self._serving = self._serving or isinstance(message, EngineInfo)
                self._on_message(message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            limit = HUNG_SECONDS + 10 * self._longest_silence
            if self._serving and self.silence() > limit:
                self.kill(f"the engine gave no sign of life for {limit:.0f} s")


def _exit_words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
