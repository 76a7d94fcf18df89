"""Work that grows with a text, kept from holding up the event loop, and from keeping back other tenants' work."""

import asyncio
import os
from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from .fair_executor import FairExecutor

INLINE_CHARS = 8192
"""Text up to this length is rendered, tokenized and read on the event loop, longer text on a thread."""
THREADS: Final = min(16, max(2, os.cpu_count() or 2))
"""That work on texts at a time. asyncio has a few more, which are left to the database."""
T = TypeVar("T")

_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, FairExecutor]] = WeakKeyDictionary()


async def finished_in_thread(work: Callable[[], T]) -> T:
    """The result of `work` on a thread, which has ended when this does, also where this is cancelled: nobody takes away
    under its feet what it uses."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


async def off_loop(work: Callable[[], T], chars: int) -> T:
    """The result of `work` on `chars` characters, without holding up the event loop for long."""
    if chars <= INLINE_CHARS:
        return work()
    loop = asyncio.get_running_loop()
    if loop not in _turns:
        _turns[loop] = FairExecutor(THREADS)
    return await _turns[loop].run(work)
