"""An app in this process behind httpx: parts go in and come out one by one, and its errors arrive."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from loraplex.web.cli.in_process.transport import AppTransport

PARTS = 5


def client_of(app: ASGIApp) -> httpx.Client:
    return httpx.Client(base_url="http://localhost", transport=AppTransport(app))


async def start(send: Send, status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"x-told", b"yes")]})


def test_a_body_is_read_as_the_app_takes_it() -> None:
    given: list[int] = []

    def body() -> Iterator[bytes]:
        for number in range(PARTS):
            given.append(number)
            yield b"%d" % number

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        read, seen = [], []
        while (message := await receive())["more_body"]:
            read.append(message["body"])
            seen.append(len(given))
        await start(send)
        await send({"type": "http.response.body", "body": b"".join(read) + repr(seen).encode()})

    with closing(client_of(app)) as client:
        answer = client.put("/a%2Fb?c=d", content=body(), headers={"content-length": str(PARTS)})
    assert answer.text == "01234[1, 2, 3, 4, 5]", "one part was made for each that was read"
    assert answer.headers["x-told"] == "yes"


def test_an_answer_comes_as_the_app_sends_it_and_ends_where_nobody_reads_on() -> None:
    ended = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        try:
            while True:
                await send({"type": "http.response.body", "body": b"part", "more_body": True})
                await asyncio.sleep(0)
        finally:
            ended.append(scope["path"])

    with closing(client_of(app)) as client:
        with client.stream("GET", "/endless") as answer:
            parts = answer.iter_bytes()
            assert [next(parts) for _ in range(PARTS)] == [b"part"] * PARTS and not ended
        assert ended == ["/endless"]
        with client.stream("GET", "/again"):
            pass
    assert ended == ["/endless", "/again"]


@pytest.mark.parametrize("begun", [False, True])
def test_what_the_app_raises_is_raised(begun: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await start(send, 500)
            await send({"type": "http.response.body", "body": b"Internal Server Error"})
        raise KeyError("of ours")

    with closing(client_of(app)) as client, pytest.raises(KeyError, match="of ours"):
        client.get("/")
    gc.collect()  # a task whose error nobody has seen would complain


def test_the_app_hears_of_no_end_before_its_answer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive())["more_body"] or not (await receive())["more_body"]
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait([leaving], timeout=0.05)
        await start(send)
        await send({"type": "http.response.body", "body": b"stayed" if not leaving.done() else b"left"})
        leaving.cancel()

    with closing(client_of(app)) as client:
        assert [client.get("/").text for _ in range(2)] == ["stayed"] * 2
