"""copy_body: a body into a file, hashed and written in a thread while the next bytes come."""

import asyncio
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import Final

from loraplex.registry.files.incoming import IncomingFile

from .body import Body

BLOCK_BYTES: Final = 1 << 20
BLOCKS: Final = 3
"""One is filled, one waits for its turn, one is written."""


async def copy_body(body: Body, incoming: IncomingFile) -> None:
    """What has come is written also when this is cancelled or the connection breaks: a PUT may go on from there.

    After an error of the disk nothing more is written. The thread is its own: a slow disk keeps nobody else waiting.
    It has ended when this does, however often this is cancelled: the caller may close the file.
    """
    blocks = cycle(memoryview(bytearray(BLOCK_BYTES)) for _ in range(BLOCKS))
    writes: deque[Future[None]] = deque()
    thread = ThreadPoolExecutor(1, thread_name_prefix="upload")
    try:
        while not body.ended:
            if len(writes) == BLOCKS:
                await _end_of(writes.popleft())
            block = next(blocks)
            try:
                await body.read_into(block)
            finally:
                last = writes[-1] if writes else None
                writes.append(thread.submit(_write, incoming, block[: body.filled], last))
    finally:
        body.leave()
        thread.shutdown(wait=False)
        if writes:
            await _end_in_any_case(writes[-1])


def _write(incoming: IncomingFile, block: memoryview, last: "Future[None] | None") -> None:
    """Raises what the last one has raised: no bytes are written behind a gap."""
    if last is not None:
        last.result()
    incoming.write(block)


async def _end_of(write: "Future[None]") -> None:
    await asyncio.shield(asyncio.wrap_future(write))


async def _end_in_any_case(write: "Future[None]") -> None:
    """Raises the last cancellation, or what the write has raised, after its end."""
    ending, cancelled = asyncio.wrap_future(write), None
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    ending.result()
