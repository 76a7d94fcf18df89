"""A process in which a thread cannot start or go on ends with words, even where there is no memory for a frame."""

import subprocess
import sys
import textwrap

import pytest

from loraplex.engine.processes.lost_threads import THREAD_LOST

CASES = {
    "a thread that raises": """
        threading.Thread(target=lambda: 1 / 0).start()
        time.sleep(60)
    """,
    "a thread that has no memory to start": """
        import resource
        threading.stack_size(8 << 20)
        def limit_data(more):
            lines = open("/proc/self/status")
            writable = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))
            resource.setrlimit(resource.RLIMIT_DATA, (writable + more, resource.RLIM_INFINITY))
        for pages in range(100):
            limit_data((8 << 20) + pages * 4096)
            try:
                threading.Thread(target=time.sleep, args=(60,)).start()
            except RuntimeError:
                continue  # not even a stack
            sys.exit("it had memory")
    """,
    "a finalizer without memory": """
        class Kept:
            def __del__(self):
                raise MemoryError
        Kept()
        time.sleep(60)
    """,
}
HARMLESS = """
    class Kept:
        def __del__(self):
            raise KeyError("a finalizer's")
    Kept()
    time.sleep(1)
    print("goes on")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    opening = "import threading, time\nfrom loraplex.engine.processes.lost_threads import *\nend_with_lost_threads()\n"
    command = [sys.executable, "-c", opening + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


@pytest.mark.skipif(sys.platform != "linux", reason="sets Linux's limit of memory")
@pytest.mark.parametrize("case", CASES)
def test_it_ends_with_words(case: str) -> None:
    done = run(CASES[case])
    assert done.returncode == THREAD_LOST
    assert "A thread could not start or go on; the process ends." in done.stderr


def test_other_errors_of_finalizers_are_only_told() -> None:
    done = run(HARMLESS)
    assert (done.returncode, done.stdout) == (0, "goes on\n") and "a finalizer's" in done.stderr
