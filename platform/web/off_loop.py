"""Work that grows with a text, kept from holding up the event loop."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

INLINE_CHARS = 8192
"""Text up to this length is rendered, tokenized and read on the event loop, longer text on a thread."""
T = TypeVar("T")


async def off_loop(work: Callable[[], T], chars: int) -> T:
    """The result of `work` on `chars` characters, without holding up the event loop for long."""
    return work() if chars <= INLINE_CHARS else await asyncio.to_thread(work)
