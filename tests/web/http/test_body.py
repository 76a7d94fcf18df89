"""Bodies over the connection itself: whole, broken, given up, and what comes on the same connection afterwards."""

import asyncio
import errno
import hashlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from loraplex.registry.errors import StorageFull
from loraplex.registry.files.artifacts import ArtifactStore
from loraplex.registry.files.incoming import IncomingFile
from loraplex.web.http.body import open_body
from loraplex.web.http.body_reader import BodyReader
from loraplex.web.http.file_copy import BLOCK_BYTES, BLOCKS, copy_body
from loraplex.web.http.protocol import Http

OFFER = b"\r\nupgrade: h2c\r\n"
LARGE = os.urandom(5 * BLOCK_BYTES) + OFFER + os.urandom(12_345)


class App:
    """Answers the SHA-256 of a body, or after `blocks` of them nothing but "enough"."""

    def __init__(self) -> None:
        self.blocks: int | None = None
        self.broken: list[bytes] = []
        self.kinds: list[type] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        request = Request(scope, receive)
        body = await open_body(request, int(request.headers.get("content-length", 0)))
        self.kinds.append(type(body))
        came, block, read = bytearray(), memoryview(bytearray(BLOCK_BYTES)), 0
        while not body.ended and read != self.blocks:
            try:
                await body.read_into(block)
            except ClientDisconnect:
                self.broken.append(bytes(came + block[: body.filled]))
                return
            came += block[: body.filled]
            read += 1
        body.leave()
        answer = hashlib.sha256(came).hexdigest() if read != self.blocks else "enough"
        await PlainTextResponse(answer)(scope, receive, send)


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of `app`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, http=Http, lifespan="off", log_config=None))
        running = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await running


def put(body: bytes, *more: str) -> bytes:
    head = "\r\n".join(["PUT / HTTP/1.1", "host: here", f"content-length: {len(body)}", *more])
    return head.encode() + b"\r\n\r\n" + body


async def answer(reader: asyncio.StreamReader) -> str:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).lower()
    assert head.startswith(b"http/1.1 200 ")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    return (await reader.readexactly(length)).decode()


async def test_bodies_of_any_size_and_the_requests_after_them() -> None:
    app = App()
    async with serving(app) as (reader, writer):
        for body in (LARGE, b"", b"x", LARGE[: 2 * BLOCK_BYTES], LARGE):
            writer.write(put(body))
            assert await answer(reader) == hashlib.sha256(body).hexdigest()
        assert set(app.kinds) == {BodyReader}


async def test_requests_sent_behind_a_body_are_not_taken_for_it() -> None:
    async with serving(App()) as (reader, writer):
        writer.write(put(LARGE) + put(b"second") + put(LARGE[::-1]))
        for body in (LARGE, b"second", LARGE[::-1]):
            assert await answer(reader) == hashlib.sha256(body).hexdigest()


async def test_an_offer_of_http2_is_taken_out_of_the_head_alone() -> None:
    async with serving(App()) as (reader, writer):
        writer.write(put(OFFER * 3, "connection: upgrade", "upgrade: h2c"))
        assert await answer(reader) == hashlib.sha256(OFFER * 3).hexdigest()


async def test_what_a_broken_connection_brought_is_known() -> None:
    app = App()
    async with serving(app) as (_, writer):
        writer.write(put(LARGE)[: -len(LARGE) // 3])
        await writer.drain()
        writer.close()
        while not app.broken:
            await asyncio.sleep(0.01)
    assert len(app.broken[0]) > BLOCK_BYTES and LARGE.startswith(app.broken[0])


async def test_a_body_that_nobody_wants_keeps_no_answer_back() -> None:
    app = App()
    app.blocks = 2
    async with serving(app) as (reader, writer):
        writer.write(put(LARGE))
        assert await answer(reader) == "enough"
        app.blocks = None
        writer.write(put(b"next"))
        assert await answer(reader) == hashlib.sha256(b"next").hexdigest()


@pytest.mark.parametrize("blocks", [0, 1], ids=["unread", "left"])
async def test_an_offer_of_http2_after_a_body_that_nobody_wanted(blocks: int) -> None:
    """As Java's client makes it with every request on a connection."""
    app = App()
    app.blocks = blocks
    async with serving(app) as (reader, writer):
        writer.write(put(LARGE, "connection: upgrade", "upgrade: h2c"))
        assert await answer(reader) == "enough"
        await writer.drain()
        await asyncio.sleep(0.1)
        app.blocks = None
        writer.write(put(b"next", "connection: upgrade", "upgrade: h2c"))
        assert await answer(reader) == hashlib.sha256(b"next").hexdigest()


async def test_what_follows_the_last_request_of_a_connection_does_not_take_its_answer() -> None:
    """Also where a body went over the connection before."""
    async with serving(App()) as (reader, writer):
        writer.write(put(LARGE))
        assert await answer(reader) == hashlib.sha256(LARGE).hexdigest()
        writer.write(put(b"last", "connection: close") + b"\r\nmore")
        assert await answer(reader) == hashlib.sha256(b"last").hexdigest()


class Source:
    """A body of blocks of zeros, the last of which never comes whole: 100 bytes of it, then nothing."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self.filled, self.ended = 0, False
        self.waits = asyncio.Event()

    async def read_into(self, block: memoryview) -> None:
        self.filled = len(block)
        self._blocks -= 1
        if self._blocks < 0:
            self.filled = 100
            self.waits.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    def leave(self) -> None:
        self.ended = True


@pytest.fixture
def incoming(tmp_path: Path) -> IncomingFile:
    store = ArtifactStore(tmp_path, free_floor=0)
    return store.receive(1 << 30, "a" * 64, 1 << 30, "me")


async def test_what_came_before_a_timeout_is_written(incoming: IncomingFile) -> None:
    """Which ends the copying as this does."""
    body = Source(5)
    with incoming:
        copying = asyncio.create_task(copy_body(body, incoming))
        await asyncio.wait_for(body.waits.wait(), 60)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
    assert incoming.received == 5 * BLOCK_BYTES + 100
    assert body.ended


async def test_nothing_is_written_behind_a_gap(incoming: IncomingFile, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write, calls = os.write, 0

    def write(descriptor: int, data: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "full")
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with incoming, pytest.raises(StorageFull):
        await copy_body(Source(3 * BLOCKS), incoming)
    assert calls == 2 and incoming.received == BLOCK_BYTES


async def test_no_thread_writes_to_a_file_that_was_given_up(
    incoming: IncomingFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another file's by then. Cancelled twice, as by a timeout and the end of the server."""
    real_write, writing = os.write, threading.Event()

    def write(descriptor: int, data: Any) -> int:
        writing.set()
        time.sleep(0.2)
        return real_write(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    body = Source(2)
    with incoming:
        copying = asyncio.create_task(copy_body(body, incoming))
        await asyncio.to_thread(writing.wait)
        await body.waits.wait()
        for _ in range(2):
            copying.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert incoming.received == 2 * BLOCK_BYTES + 100
