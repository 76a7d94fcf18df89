"""PasswordWorker: passwords are hashed one at a time, behind all other work, and few of them wait."""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ..http.errors import overloaded

MOST_PENDING: Final = 16
"""Hashes that run or wait. One takes 64 MiB, and a twentieth of a second or more."""
MOST_OF_ADDRESS: Final = MOST_PENDING // 2
"""So that one address leaves room for others."""
NICENESS: Final = 10
"""Added to that of the process: tokens come first."""
T = TypeVar("T")


class PasswordWorker:
    """For one event loop. The thread is its own, so that nothing else waits for a thread behind passwords; argon2 holds
    no lock of the interpreter while it works."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "passwords", initializer=_step_back)
        self._pending: Counter[str] = Counter()

    async def run(self, work: Callable[[], T], address: str) -> T:
        """The result of `work`, which hashes a password for a client at `address`. Raises ApiError 503 where many wait
        already. Once begun it is not given up, whoever waits for it."""
        if self._pending.total() >= MOST_PENDING or self._pending[address] >= MOST_OF_ADDRESS:
            raise overloaded("Too many logins at the moment. Try again in a few seconds.", 5)
        self._pending[address] += 1
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        running.add_done_callback(lambda _: self._forget(address))
        return await asyncio.shield(running)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _forget(self, address: str) -> None:
        self._pending[address] -= 1
        if not self._pending[address]:
            del self._pending[address]


def _step_back() -> None:
    """Threads that argon2 starts are as nice as the one that starts them."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)
