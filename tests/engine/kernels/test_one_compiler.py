"""Processes with one cache of compiled kernels: who comes second waits for the first and takes what it compiled."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core import config

from loraplex.engine.kernels import one_compiler

KERNEL = """
import numba

@numba.njit(cache=True)
def inner(x):
    return x + 1

@numba.njit(cache=True)
def outer(x):
    return inner(x) * 2

@numba.njit(cache=True, parallel=True)
def many(x):
    total = 0
    for at in numba.prange(x):
        total += at
    return total

@numba.njit(cache=True)
def twice(x):
    return many(x) * 2

def multiplied(factor):
    @numba.njit(cache=True, parallel=True)
    def product(x):
        total = 0
        for at in numba.prange(x):
            total += factor
        return total
    return product
"""
SHARED = """
import sys, time
from pathlib import Path
from numba.core import event
from numba.core.caching import IndexDataCacheFile
import kernel
from loraplex.engine.kernels import one_compiler

class Clock:
    monotonic = time.monotonic
    def sleep(seconds):
        Path(sys.argv[1] + "-waits").touch()
        time.sleep(seconds)

one_compiler.time = Clock
one_compiler.share_compiled_kernels()
one_compiler.share_compiled_kernels()
"""
COMPILE = """
class Held(event.Listener):
    def on_start(self, seen):
        if seen.data["dispatcher"] is kernel.outer:
            Path(sys.argv[1]).touch()
            while not Path("go").exists():
                time.sleep(0.01)
    def on_end(self, seen):
        pass

one_compiler.LONGEST_WAIT = float(sys.argv[2])
event.register("numba:compile", Held())
assert kernel.outer(3) == 8
print(*(sum(function.stats.cache_misses.values()) for function in (kernel.outer, kernel.inner)))
"""
SAVE = """
save = IndexDataCacheFile._save_index

def save_when_the_other_is_there(file, entries):
    Path(sys.argv[1] + "-saves").touch()
    while not any(Path(sys.argv[2] + what).exists() for what in ("-saves", "-waits")):
        time.sleep(0.01)
    save(file, entries)

IndexDataCacheFile._save_index = save_when_the_other_is_there
kernel.inner({"int": 3, "float": 3.0}[sys.argv[1]])
"""
LOOK = """
kernel.inner(3), kernel.inner(3.0)
print(sum(kernel.inner.stats.cache_misses.values()))
"""
CALL = """
for name in sys.argv[2:]:
    getattr(kernel, name)(4)
print(sum(sum(getattr(kernel, name).stats.cache_misses.values()) for name in sys.argv[2:]))
"""
MULTIPLY = """
from numba.parfors.parfor import Parfor
Parfor.__hash__ = lambda loop: 1
print(*(kernel.multiplied(int(factor))(3) for factor in sys.argv[2:]))
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A process with kernels. COMPILE holds the outer one's compilation until there is a file `go`."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "cache").mkdir()
    started: list[subprocess.Popen[str]] = []

    def begin(name: str, *given: str, script: str = COMPILE) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", SHARED + script, name, *(given or ["240"])]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def until(*files: Path) -> None:
    """One of them is there."""
    deadline = time.monotonic() + 240
    while not any(file.exists() for file in files):
        assert time.monotonic() < deadline, files
        time.sleep(0.01)


def misses(process: "subprocess.Popen[str]") -> str:
    """Of the cache, by the outer and the inner kernel."""
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return said.strip()


def test_who_comes_second_waits_and_compiles_nothing(start: Start, tmp_path: Path) -> None:
    first = start("first")
    until(tmp_path / "first")
    second = start("second")
    until(tmp_path / "second-waits", tmp_path / "second")
    (tmp_path / "go").touch()
    assert misses(first) == "1 1"
    assert misses(second) == "0 0"
    assert not (tmp_path / "second").exists()


def test_who_was_killed_while_it_compiled_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    first = start("first")
    until(tmp_path / "first")
    first.kill()
    (tmp_path / "go").touch()
    assert misses(start("second")) == "1 1"


def test_who_takes_too_long_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    """It may be stopped without having ended."""
    start("first")
    until(tmp_path / "first")
    second = start("second", "0.2")
    until(tmp_path / "second")
    (tmp_path / "go").touch()
    assert misses(second).startswith("1 ")


def test_two_that_save_at_the_same_moment_lose_nothing(start: Start) -> None:
    """Both signatures of a kernel are in one index."""
    for process in (start("int", "float", script=SAVE), start("float", "int", script=SAVE)):
        assert misses(process) == ""
    assert misses(start("both", script=LOOK)) == "0"


def test_a_kernel_from_the_cache_finds_the_threads_of_one_that_it_has_in_it(start: Start) -> None:
    """numba forgets that `twice` needs threads where it was compiled with a `many` from the cache."""
    assert misses(start("first", "many", script=CALL)) == "1"
    assert misses(start("second", "many", "twice", script=CALL)) == "1"
    assert misses(start("third", "twice", script=CALL)) == "0"


def test_kernels_that_one_function_makes_have_a_place_each() -> None:
    """Processes may compile them side by side; what reads otherwise in every process tells none apart."""

    def make(rows: tuple[int, ...], stored: "np.ndarray[Any, Any]", inner: object) -> Any:
        def kernel() -> object:
            return rows, stored, inner

        return kernel

    def place(kernel: Any) -> int:
        return one_compiler._place(kernel, (), *one_compiler._constants(kernel))

    short, floats = np.zeros(1, np.uint16), np.zeros(1, np.float32)
    makes = [make((0, 0), short, object()), make((0,), short, object()), make((0, 0), floats, object())]
    assert len(set(map(place, makes))) == 3
    assert place(makes[0]) == place(make((0, 0), short.copy(), object()))


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], Clock]:
    """A folder where every lock is answered with this error."""
    clock = Clock()
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(one_compiler, "time", clock)
    monkeypatch.setattr(one_compiler, "_gave_up", threading.Event())

    def refuse(number: int) -> Clock:
        def lockf(*given: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "lockf", lockf)
        return clock

    return refuse


def turns(count: int) -> list[bool]:
    """Whether each was ours."""
    found = []
    for place in range(count):
        with one_compiler._turn(place) as ours:
            found.append(ours)
    return found


def test_one_who_is_stopped_is_waited_for_once(refused: Callable[[int], Clock]) -> None:
    """It may hold several kernels, and some are compiled within others; nothing is saved beside it."""
    clock = refused(errno.EAGAIN)
    assert turns(5) == [False] * 5
    assert one_compiler.LONGEST_WAIT <= clock.slept < 1.1 * one_compiler.LONGEST_WAIT
    saved: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_compiler, "_save", lambda *given: saved.append(given))
        cache = type("Cache", (), {"_py_func": staticmethod(turns)})()
        one_compiler._save_in_turn(cache, None, None)
        assert not saved
        refused(errno.ENOLCK)
        one_compiler._save_in_turn(cache, None, None)
    assert len(saved) == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOLCK])
def test_where_nothing_can_be_locked_nobody_waits(refused: Callable[[int], Clock], number: int) -> None:
    clock = refused(number)
    assert turns(5) == [True] * 5 and clock.slept == 0


def test_kernels_that_several_processes_compiled_are_not_taken_for_each_other(start: Start) -> None:
    """Of one function, made for a number each. numba names their loops by a count that begins anew in every process,
    and by addresses, which may be the same too."""
    for factors in (("2",), ("5",), ("2", "5")):
        wanted = " ".join(str(3 * int(factor)) for factor in factors)
        assert start("-", *factors, script=MULTIPLY).communicate(timeout=60)[0].strip() == wanted
