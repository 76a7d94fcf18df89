"""What the other process does in test_killed_server.py: the whole API process, but for its engine and its children.

Imported with WARM_UP set to a model's folder, it starts and ends an app first, so that the processes forked from this
one need not import and compile the same things again.
"""

import asyncio
import functools
import os
import socket
import tempfile
from pathlib import Path

import pytest
from pwdlib.hashers.argon2 import Argon2Hasher

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.access import users
from loraplex.web.server import Server
from loraplex.web.settings.settings import Settings
from loraplex.web.state import open_state
from tests.inspected_here import inspect_here
from tests.web.fake_engine import FakeEngine
from tests.web.routes_once import read_routes_once

WARM_UP = "KILLED_SERVER_WARM_UP"
quick_hasher = functools.partial(Argon2Hasher, time_cost=1, memory_cost=8, parallelism=1)


def hash_quickly() -> None:
    users.Argon2Hasher = quick_hasher  # type: ignore[misc,assignment]


def serve(listener: socket.socket, settings: Settings, model: Path, delay: float = 0.0) -> None:
    """Until somebody kills it. `delay`: seconds that its engine takes for a token."""
    inspect_here(pytest.MonkeyPatch())
    hash_quickly()
    engine = FakeEngine(Tokenizer(model))
    engine.delay = delay
    state = open_state(settings, model, engine)
    asyncio.run(Server(state).serve(sockets=[listener]))


def settings_of(folder: Path, model: Path, key: str) -> Settings:
    return Settings(
        data_dir=folder, model=str(model), admin_password="correct horse battery", api_key=key, min_free_bytes=0
    )


def _warm_up(model: Path) -> None:
    hash_quickly()
    read_routes_once(pytest.MonkeyPatch())
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(Path(folder), model, "lp-a-key-that-is-used-by-nobody")
        state = open_state(settings, model, FakeEngine(Tokenizer(model)))
        Server(state)
        state.registry.close()


if WARM_UP in os.environ:
    _warm_up(Path(os.environ[WARM_UP]))
