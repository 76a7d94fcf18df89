"""A server that is told to stop while it still starts ends in order and leaves nothing behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .live_server import LiveServer, free_port

TERMINATED = 143
"""What a shell shows for a program that SIGTERM ended."""
MOMENTS = {
    "it looks for the model": "model found",
    "it opens the registry": "registry open",
    "the engine reads its configuration": "engine: configuration read",
    "the engine compiles": "engine: memory reserved",
    "it is ready": "loraplex is ready",
}

STOPPED_IN_A_FINALIZER = """
import signal, time, weakref
from loraplex import __main__ as program
from loraplex.web.cli import app

class Thing: pass

def run():
    thing = Thing()
    watched = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    del thing
    time.sleep(20)

app.main = run
program.main()
"""
STOPPED_AGAIN_WHERE_THAT_IS_FOUND = f"""
import signal

set_timer = signal.setitimer

def set_late(*arguments):
    signal.setitimer = set_timer
    set_timer(*arguments)
    signal.raise_signal(signal.SIGTERM)

signal.setitimer = set_late
{STOPPED_IN_A_FINALIZER}
"""
STOPPED_WHERE_EXCEPTIONS_ARE_DROPPED = """
import signal, time
from loraplex import __main__ as program
from loraplex.web.cli.serve import serve

def look(model):
    try:
        signal.raise_signal(signal.NUMBER)
    except BaseException:
        pass
    time.sleep(20)

serve.resolve_model_folder = look
program.main()
"""


@pytest.mark.parametrize("words", MOMENTS.values(), ids=MOMENTS.keys())
def test_stopped_while_it_starts(checkpoint: Path, tmp_path: Path, words: str) -> None:
    server = LiveServer(tmp_path, checkpoint, num_kv_blocks=64)
    try:
        server.spawn()
        server.until_said(words)
        server.signal_stop()
        late = "is ready" in server.log()  # as it may be where this process had to wait for a core
        assert server.wait_stopped(60) in (0, TERMINATED), server.log()
        assert server.left_behind() == []
        assert "Traceback" not in server.log()
        assert late or "is ready" not in server.log()
    finally:
        server.end()


def test_killed_while_the_engine_loads(checkpoint: Path, tmp_path: Path) -> None:
    """Nobody can tell the engine process: it notices by itself."""
    server = LiveServer(tmp_path, checkpoint, num_kv_blocks=64)
    try:
        server.spawn()
        server.until_said("model found")
        server.kill()
        assert server.left_behind() == []
    finally:
        server.end()


def test_stopped_between_the_lines(checkpoint: Path, tmp_path: Path) -> None:
    """At moments that no line of the log marks: while Python and modules are loaded and the engine is spawned."""
    for number, pause in enumerate((0.1, 0.6, 1.2, 1.8, 2.4)):
        (tmp_path / str(number)).mkdir()
        server = LiveServer(tmp_path / str(number), checkpoint, num_kv_blocks=64)
        try:
            server.spawn()
            time.sleep(pause)
            server.signal_stop()
            # Before the first line of ours runs, Python itself dies of the signal.
            assert server.wait_stopped(60) in (0, TERMINATED, -signal.SIGTERM), f"after {pause} s\n{server.log()}"
            assert server.left_behind() == []
        finally:
            server.end()


@pytest.mark.parametrize(
    "script", [STOPPED_IN_A_FINALIZER, STOPPED_AGAIN_WHERE_THAT_IS_FOUND], ids=["once", "and where that is found"]
)
def test_stopped_within_a_finalizer(script: str) -> None:
    """Python drops exceptions there, so an end that is raised once would be lost."""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (TERMINATED, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_where_exceptions_are_dropped(number: signal.Signals) -> None:
    """As imports and libraries do while the server starts: none that a signal raises may be lost."""
    script = STOPPED_WHERE_EXCEPTIONS_ARE_DROPPED.replace("NUMBER", number.name)
    command = [sys.executable, "-c", script, "serve", "--port", str(free_port())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stderr) == (128 + number, "")
