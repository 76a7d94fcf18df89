"""Server: uvicorn around the app, with an orderly end.

`State.stopping`: new requests get 503, and running ones have `drain_seconds` to end. `State.drained`: the engine and
all streams have ended. Then the port closes.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

import uvicorn

from .app import create_app
from .http.protocol import bounded_http
from .settings.settings import Settings
from .state import State

GRACE_SECONDS = 10
"""After draining: for error events to go out, and again for the engine and the workers to end."""
KEEP_ALIVE_SECONDS = 5
T = TypeVar("T")


class Server(uvicorn.Server):
    """`await serve()` returns after SIGINT or SIGTERM; `state.started` is set when the engine has started or failed."""

    def __init__(self, state: State) -> None:
        super().__init__(_config(state, state.settings))
        self._state = state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops taking work and drains, a second one ends at once; the process then exits as told.

        Uvicorn's own handler would raise the signal again afterwards, so that an orderly end looked like a crash.
        """
        if self._state.stopping.is_set():
            # The engine notices that its parent is gone. Nothing waits for it, nor for anybody's answer.
            print("loraplex: second signal received, stopping at once", file=sys.stderr, flush=True)
            os._exit(128 + sig)
        self._state.stopping.set()

    async def on_tick(self, counter: int) -> bool:
        """While requests drain the port stays open: who comes then is told that it is stopping."""
        self.should_exit = self.should_exit or self._state.drained.is_set()
        return await super().on_tick(counter)


def run_in_loop(main: Coroutine[Any, Any, T]) -> T:
    """On the event loop that uvicorn itself would start: uvloop where the system has it."""
    with asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner:
        return runner.run(main)


def _config(state: State, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(state),
        host=settings.host,
        port=settings.port,
        http=bounded_http(settings),
        ws="none",
        root_path=settings.root_path,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
