"""Limits on what comes before a request is known: size, number and time of headers, on real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from loraplex.web.http.protocol import LIMITS, MOST_PIPELINED, HeadLimits

from .http_server import http_server

SHORT = HeadLimits(seconds=0.3)
GET = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield reader, writer
    finally:
        writer.close()


def head_of(size: int) -> bytes:
    """So many bytes with the empty line at the end."""
    head = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\nx: %s\r\n\r\n"
    return head % (b"a" * (size - len(head) + 2))


def headers_of(count: int) -> bytes:
    lines = [b"host: here", b"connection: close", *(b"x-%d: a" % number for number in range(count - 2))]
    return b"\r\n".join([b"GET / HTTP/1.1", *lines, b"", b""])


async def everything(reader: asyncio.StreamReader) -> bytes:
    """Until the other end closes."""
    return await asyncio.wait_for(reader.read(-1), 60)


async def told(port: int, *pieces: bytes) -> bytes:
    async with connected(port) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        return await everything(reader)


def check_refusal(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in head
    assert msgspec.json.decode(body)["error"]["code"] == code


async def test_the_limits_themselves_are_within() -> None:
    async with http_server() as port:
        for head in (head_of(LIMITS.bytes), headers_of(LIMITS.headers)):
            for pieces in ([head], [head[at : at + 1000] for at in range(0, len(head), 1000)], [head[:-1], head[-1:]]):
                assert (await told(port, *pieces)).startswith(b"HTTP/1.1 200 "), len(pieces)


async def test_one_more_is_refused_in_words() -> None:
    async with http_server() as port:
        for head in (head_of(LIMITS.bytes + 1), headers_of(LIMITS.headers + 1), b"GET /" + b"a" * LIMITS.bytes):
            for pieces in ([head], [head[at : at + 1000] for at in range(0, len(head), 1000)]):
                check_refusal(await told(port, *pieces), 431, "headers_too_large")


async def test_what_is_no_http_is_refused_in_words() -> None:
    async with http_server() as port:
        check_refusal(await told(port, b"\x16\x03\x01 hello\r\n\r\n"), 400, "bad_request")


async def test_an_offer_of_websockets_is_not_taken_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    offer = LAST.replace(
        b"connection: close", b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13"
    )
    async with http_server() as port, connected(port) as (reader, writer):
        writer.write(offer)
        assert (await reader.readuntil(b"4 0")).startswith(b"HTTP/1.1 200 ")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_connections_that_trickle_or_say_nothing_end() -> None:
    async with http_server(limits=SHORT) as port:

        async def trickle() -> bytes:
            async with connected(port) as (reader, writer):
                answer = asyncio.create_task(everything(reader))
                for byte in head_of(5000):
                    if answer.done():
                        break
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)
                return await answer

        trickled = await asyncio.gather(*(trickle() for _ in range(100)))
        silent = await asyncio.gather(*(told(port) for _ in range(100)))
    for answer in trickled:
        check_refusal(answer, 408, "request_timeout")
    assert set(silent) == {b""}


async def test_a_second_request_that_trickles_ends_too() -> None:
    async with http_server(limits=SHORT) as port, connected(port) as (reader, writer):
        writer.write(GET)
        assert (await reader.readuntil(b"1 0")).startswith(b"HTTP/1.1 200 ")
        answer = asyncio.create_task(everything(reader))
        while not answer.done():
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)
        check_refusal(await answer, 408, "request_timeout")


async def test_a_connection_is_good_for_many_requests() -> None:
    async with http_server(limits=SHORT) as port, connected(port) as (reader, writer):
        for _ in range(3 * LIMITS.headers):
            writer.write(GET)
            await reader.readuntil(b"1 0")
        await asyncio.sleep(3 * SHORT.seconds)
        writer.write(LAST)
        assert (await everything(reader)).endswith(b"2 0"), (
            "between requests the clock of keep-alive runs, and no other"
        )


async def test_requests_ahead_of_their_answers() -> None:
    async with http_server() as port:
        assert (await told(port, GET * 50 + LAST)).count(b"HTTP/1.1 200 ") == 51
        many = await told(port, GET * (MOST_PIPELINED + 50))
    assert many.count(b"HTTP/1.1 200 ") == many.count(b"HTTP/1.1 ") == MOST_PIPELINED + 1


async def stream_for_a_second(scope: Scope, receive: Receive, send: Send) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"data: %d\n\n" % number
            await asyncio.sleep(0.1)

    if scope["type"] == "http":
        await StreamingResponse(parts())(scope, receive, send)


@pytest.mark.parametrize("more", [b"", b"\r\n", b"GET / HT", head_of(2 * LIMITS.bytes), headers_of(200)])
async def test_a_stream_outlives_every_clock_and_whatever_is_sent_behind_its_request(more: bytes) -> None:
    async with http_server(stream_for_a_second, limits=SHORT) as port:
        answer = await told(port, GET, more)
    assert answer.count(b"data: ") == 10 and b"0\r\n\r\n" in answer
    rest = answer.partition(b"0\r\n\r\n")[2]
    assert not rest or rest.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_slow_body_is_no_slow_head(chunked: bool) -> None:
    length = b"transfer-encoding: chunked" if chunked else b"content-length: 30"
    async with http_server(limits=SHORT) as port, connected(port) as (reader, writer):
        writer.write(b"PUT / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n%s\r\n\r\n" % length)
        for _ in range(10):
            writer.write(b"3\r\nabc\r\n" if chunked else b"abc")
            await asyncio.sleep(0.1)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        assert (await everything(reader)).endswith(b"3 30")


CHUNKED = b"PUT / HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0"


async def test_headers_behind_a_body_are_nobodys() -> None:
    async with http_server() as port:
        assert (await told(port, CHUNKED + b"\r\nx-more: a\r\n\r\n" + LAST)).count(b"HTTP/1.1 200 ") == 2
        assert b"2 3" in await told(port, CHUNKED + b"\r\nx-more: a\r\n\r\n" + LAST)


@pytest.mark.parametrize("more", [b";x=%s", b"\r\nx: %s", b"\r\n%s"])
async def test_headers_behind_a_body_have_the_same_limits(more: bytes) -> None:
    long = b"a" * 2 * LIMITS.bytes if b"x" in more else b"".join(b"x-%d: a\r\n" % n for n in range(LIMITS.headers + 1))
    async with http_server() as port:
        pieces = CHUNKED + more % long
        with suppress(ConnectionResetError):
            assert await told(port, *(pieces[at : at + 9000] for at in range(0, len(pieces), 9000))) == b""


async def test_a_body_that_nobody_waits_for_does_not_keep_a_connection() -> None:
    async with http_server(refuse, limits=SHORT) as port, connected(port) as (reader, writer):
        writer.write(b"PUT / HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\n")
        answer = asyncio.create_task(everything(reader))
        while not answer.done():
            writer.write(b"a")
            await asyncio.sleep(0.02)
        assert (await answer).startswith(b"HTTP/1.1 401 ")


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
