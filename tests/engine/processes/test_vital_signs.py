"""What Linux says of a process: that it computes, waits, is stopped or gone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loraplex.engine.processes.vital_signs import Signs, VitalSigns

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
SLEEP = "import time; time.sleep(600)"
COMPUTE = "while True: pass"
IN_A_THREAD = f"import threading; threading.Thread(target=exec, args=('{COMPUTE}',)).start(); {SLEEP}"


@contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def until(vital_signs: VitalSigns, wanted: Callable[[Signs], bool]) -> None:
    deadline = time.monotonic() + 60
    while not wanted(vital_signs.look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_one_that_sleeps_is_not_at_work_and_one_that_computes_always_is() -> None:
    with running(SLEEP) as sleeper, running(COMPUTE) as worker, running(IN_A_THREAD) as threaded:
        until(VitalSigns(sleeper), lambda signs: signs == Signs(working=False))
        workers = [VitalSigns(worker), VitalSigns(threaded)]
        for signs in workers:
            until(signs, lambda seen: seen.working)
        for _ in range(30):
            time.sleep(0.05)
            assert [signs.look() for signs in workers] == [Signs(working=True)] * 2


def test_one_that_is_stopped_is_not_at_work_and_known_as_stopped() -> None:
    with running(COMPUTE) as pid:
        vital_signs = VitalSigns(pid)
        os.kill(pid, signal.SIGSTOP)
        until(vital_signs, lambda signs: signs == Signs(working=False, stopped=True))
        os.kill(pid, signal.SIGCONT)
        until(vital_signs, lambda signs: signs == Signs(working=True))


def test_of_one_that_has_gone_nothing_is_held_against_it() -> None:
    with running(SLEEP) as pid:
        vital_signs = VitalSigns(pid)
    assert vital_signs.look() == Signs(working=True)
