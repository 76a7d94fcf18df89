"""JobThread: one thread that does jobs in the order of their submission."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")
Job = tuple[Future[Any], Callable[[], Any]]
Jobs = SimpleQueue[Job | None]


class JobThread(Executor):
    """The thread starts at once: a server that has started needs no new one under load.

    An error of a job is its future's. An error beside the jobs, such as a result for which there is no memory, goes to
    threading.excepthook. ThreadPoolExecutor would log it, and all later jobs would wait for ever.
    """

    def __init__(self, name: str) -> None:
        self._jobs: Jobs = SimpleQueue()
        self._thread = Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def __del__(self) -> None:
        self._jobs.put(None)

    def submit(self, work: Callable[..., T], /, *arguments: Any, **settings: Any) -> Future[T]:
        future: Future[T] = Future()
        self._jobs.put((future, partial(work, *arguments, **settings)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End after the jobs that are there, or, with `cancel_futures`, after the one that runs."""
        while cancel_futures and not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                job[0].cancel()
        self._jobs.put(None)
        if wait:
            self._thread.join()


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        _do(*job)
        job = None  # what it holds is not kept until the next one


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
