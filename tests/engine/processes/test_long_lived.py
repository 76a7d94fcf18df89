"""What a served process has made at its start is no work of Python's garbage collector."""

import gc
import socket
import threading
from types import SimpleNamespace

import pytest

from loraplex.engine.config import EngineConfig
from loraplex.engine.ipc import compile_guard, process, server
from loraplex.engine.processes.long_lived import keep_for_good
from loraplex.engine.protocol import Progress
from loraplex.engine.startup import build

pytestmark = pytest.mark.usefixtures("unfrozen")


def test_what_lives_is_kept_and_what_is_garbage_goes() -> None:
    class Node:
        itself: object = None

    def nodes() -> int:
        return sum(type(found) is Node for found in gc.get_objects())

    garbage, alive = Node(), Node()
    garbage.itself = garbage
    del garbage
    keep_for_good()
    alive.itself = alive
    assert gc.get_freeze_count() > 1000 and nodes() == 0  # get_objects leaves out what is kept
    gc.unfreeze()
    assert nodes() == 1


def test_the_engine_process_collects_nothing_until_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    engine = SimpleNamespace(info=Progress(stage="ready", seconds=0.0), core=None, adapters=None, close=lambda: None)
    serving = SimpleNamespace(serve=lambda: kept.append(gc.get_freeze_count()))
    collecting: list[bool] = []

    def build_engine(config: EngineConfig, report: object) -> object:
        collecting.append(gc.isenabled())
        return engine

    monkeypatch.setattr(build, "build_engine", build_engine)
    # The real one listens to all compilations of this process, and would tell an end that is closed by then.
    monkeypatch.setattr(compile_guard, "CompileGuard", lambda announce: None)
    monkeypatch.setattr(server, "EngineServer", lambda *arguments: serving)
    ours, theirs = socket.socketpair()
    with ours:
        assert process.run(theirs, EngineConfig(model=""), threading.Event()) == 0
    assert kept[0] > 1000
    assert collecting == [False] and gc.isenabled()
