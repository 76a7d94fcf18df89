"""EngineProcess: an engine process from its start to its end.

It is started without an event loop: `serve` does so first of all, and the two processes import side by side.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading

import msgspec

from ..config import EngineConfig

MEMORY = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Weights on huge pages, where the system has them: fewer page walks for the model and all that runs between its steps
(measured: a twentieth off one stream's time per token). A value the user has set stays."""


class EngineProcess:
    """The process inherits one end of a socket pair that nobody else can reach; `connection` is the other end."""

    def __init__(self, config: EngineConfig) -> None:
        """OSError where the system starts no process."""
        self.config = config
        self.connection, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", "loraplex.engine.ipc.process", str(theirs.fileno()))
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, pass_fds=(theirs.fileno(),), env={**MEMORY, **os.environ}
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as given:
            given.write(msgspec.json.encode(config) + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """Nothing happens where it has ended."""
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def watch() -> None:
            self._process.wait()
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        # A thread of its own: those of the loop's executor are few, and it would hold one as long as it serves.
        threading.Thread(target=watch, name="engine-process", daemon=True).start()
        await ended.wait()
        return self._process.wait()
