"""What the other process does in test_killed_server.py: the whole API process, but for its engine and its children."""

import asyncio
import functools
import socket
from pathlib import Path

import msgspec
from pwdlib.hashers.argon2 import Argon2Hasher

from loraplex.engine.tokenizer import Tokenizer
from loraplex.lora.inspection import inspect_adapter
from loraplex.registry import preflight, preflight_worker, users
from loraplex.web.admin import routes
from loraplex.web.server import Server
from loraplex.web.settings import Settings
from loraplex.web.state import open_state
from tests.web.fake_engine import FakeEngine

__all__ = ["routes"]
"""The app finds the dashboard by itself, but here it is to be imported before the process is forked."""
quick_hasher = functools.partial(Argon2Hasher, time_cost=1, memory_cost=8, parallelism=1)


def serve(listener: socket.socket, settings: Settings, model: Path) -> None:
    """Until somebody kills it."""
    preflight.ask_child = inspect_here
    users.Argon2Hasher = quick_hasher  # type: ignore[misc,assignment]
    state = open_state(settings, model, FakeEngine(Tokenizer(model)))
    asyncio.run(Server(state).serve(sockets=[listener]))


def inspect_here(_module: str, task: msgspec.Struct, _seconds: int) -> bytes:
    """A fresh Python for each upload would take most of the test's time, and it writes nothing."""
    assert isinstance(task, preflight.Task)
    inspection = inspect_adapter(Path(task.config).read_bytes(), Path(task.weights), task.base)
    return msgspec.json.encode(preflight_worker._report(inspection))
