"""TemplateWorkers: renders users' templates beside the event loop, a few at a time and never all for one tenant."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import LifoQueue
from typing import Final

from ..http.fair_executor import FairExecutor
from .chat_template import TemplateFailure
from .job import RenderJob
from .process import TemplateProcess, TemplateTooSlow

COUNT: Final = 3
"""So that a tenant whose template is slow has a second one for its others, and leaves a third to other tenants."""
REST_SECONDS: Final = 10.0
"""A template that was too slow is not tried again for so long, so that the others find a worker."""
MOST_RESTING: Final = 1024


class TemplateWorkers:
    """Each worker is a thread that waits and a process that renders. No process is there before the first job."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(COUNT, thread_name_prefix="template")
        self._processes: LifoQueue[TemplateProcess] = LifoQueue()
        for _ in range(COUNT):
            self._processes.put(TemplateProcess())
        self._turns = FairExecutor(COUNT, self._threads)
        self._resting: dict[str, float] = {}

    async def render(self, owner: str, job: RenderJob) -> str:
        """`owner`: whose template it is. Raises TemplateFailure; ApiError where no worker starts in time."""
        return await self._turns.run(partial(self._render, owner, job))

    def close(self) -> None:
        """Blocks until the jobs that run have ended."""
        self._threads.shutdown(cancel_futures=True)
        while not self._processes.empty():
            self._processes.get().close()

    def _render(self, owner: str, job: RenderJob) -> str:
        if self._resting.get(owner, 0.0) > time.monotonic():
            raise TemplateFailure(f"the chat template was too slow; it is tried again after {REST_SECONDS:g} s")
        process = self._processes.get()
        try:
            return process.render(job)
        except TemplateTooSlow:
            self._let_rest(owner)
            raise
        finally:
            self._processes.put(process)

    def _let_rest(self, owner: str) -> None:
        if len(self._resting) >= MOST_RESTING:
            self._resting.clear()
        self._resting[owner] = time.monotonic() + REST_SECONDS
