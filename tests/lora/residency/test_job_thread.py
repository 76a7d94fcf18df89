"""JobThread: jobs in order, errors where they belong, and an end with nothing left behind."""

import gc
import threading
import time
from concurrent.futures import CancelledError, Future

import pytest

from loraplex.lora.residency.job_thread import JobThread


def test_jobs_run_one_by_one_in_their_order_on_one_thread() -> None:
    done: list[tuple[int, str]] = []
    with JobThread("worker") as thread:
        futures = [thread.submit(lambda n: done.append((n, threading.current_thread().name)), n) for n in range(50)]
        assert [future.result(10) for future in futures] == [None] * 50
    assert done == [(number, "worker") for number in range(50)]


def test_an_error_is_its_jobs_and_the_next_one_runs() -> None:
    with JobThread("worker") as thread:
        failed, fine = thread.submit(int, "x"), thread.submit(int, "7", base=8)
        with pytest.raises(ValueError, match="invalid literal"):
            failed.result(10)
        assert fine.result(10) == 7


def test_shutdown_ends_after_the_job_that_runs() -> None:
    thread, begun, free = JobThread("worker"), threading.Event(), threading.Event()
    running = thread.submit(lambda: (begun.set(), free.wait(10)))
    waiting = thread.submit(int)
    assert begun.wait(10)
    free.set()
    thread.shutdown(cancel_futures=True)
    assert running.done() and waiting.done()
    if waiting.cancelled():
        with pytest.raises(CancelledError):
            waiting.result()


def test_a_thread_that_nobody_knows_any_more_ends() -> None:
    thread = JobThread("forgotten")
    assert thread.submit(int).result(10) == 0
    del thread
    gc.collect()
    deadline = time.monotonic() + 10
    while any(one.name == "forgotten" for one in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_result_that_cannot_be_kept_is_an_error_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a server ends with, while a thread that had gone in silence would be waited for."""
    told: list[type[BaseException] | None] = []

    def lack_memory(_future: Future[object], _value: object) -> None:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", lambda failure: told.append(failure.exc_type))
    monkeypatch.setattr(Future, "set_result", lack_memory)
    monkeypatch.setattr(Future, "set_exception", lack_memory)
    thread = JobThread("worker")
    thread.submit(int)
    thread.shutdown()
    assert told == [MemoryError]
