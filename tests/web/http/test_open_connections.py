"""How many connections may be open whose clients are not known, and who gives way."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from loraplex.web.http.open_connections import OpenConnections
from loraplex.web.state import State

from ..conftest import KEY
from ..http_server import http_server
from ..test_head_limits import GET, Streams, check_refusal, connected, everything
from ..test_streams import server

__all__ = ["server"]
KNOWN = GET.replace(b"GET /", b"GET /known")
SLOW = GET.replace(b"GET /", b"GET /slow")


class One:
    def __init__(self, address: str = "a", answering: bool = False) -> None:
        self.address, self.answering, self.gone = address, answering, False

    def give_way(self) -> None:
        self.gone = True


def connections(most: int, most_of_address: int) -> OpenConnections:
    return OpenConnections(most, most_of_address, lambda address: address == "proxy")


def test_the_first_that_has_no_request_gives_way() -> None:
    count = connections(3, 3)
    busy, first, second, newcomer = One("a", answering=True), One("b"), One("c"), One("d")
    assert all(map(count.enter, (busy, first, second, newcomer)))
    assert (busy.gone, first.gone, second.gone, len(count)) == (False, True, False, 3)


def test_an_address_with_many_pushes_out_its_own_and_a_proxy_nobody() -> None:
    count = connections(100, 2)
    other, *own = One("b"), One("a"), One("a"), One("a")
    proxied = [One("proxy") for _ in range(10)]
    assert all(map(count.enter, (other, *own, *proxied)))
    assert [one.gone for one in (other, *own, *proxied)] == [False, True, *[False] * 12]


def test_where_all_are_busy_the_newcomer_is_refused() -> None:
    count = connections(2, 2)
    busy = [One(answering=True) for _ in range(2)]
    assert all(map(count.enter, busy)) and not count.enter(One("b"))


def test_places_are_given_back_once() -> None:
    count = connections(1, 1)
    first, second = One(), One()
    assert count.enter(first)
    for _ in range(2):
        count.leave(first)
    assert count.enter(second) and not first.gone and len(count) == 1


@pytest.mark.parametrize("per_address", [False, True])
async def test_known_clients_stay_whoever_comes(per_address: bool) -> None:
    unknown = OpenConnections(*((1000, 5) if per_address else (5, 1000)), lambda address: False)
    async with http_server(unknown=unknown) as port, AsyncExitStack() as opened:

        async def connect(request: bytes) -> Streams:
            streams = await opened.enter_async_context(connected(port))
            streams[1].write(request)
            return streams

        known = [await connect(KNOWN) for _ in range(10)]
        for reader, _ in known:
            await reader.readuntil(b"1 0")
        slow = [await connect(SLOW) for _ in range(3)]
        idle = [await connect(b"GET / HT") for _ in range(20)]
        for reader, _ in idle[:-2]:
            check_refusal(await everything(reader), 503, "unavailable")
        assert len(unknown) == 5
        for reader, writer in known:
            writer.write(GET)
            assert b" 200 OK" in await reader.readuntil(b"1 0")
        for reader, _ in slow:
            assert b" 200 OK" in await reader.readuntil(b"1 0"), "who awaits an answer gets it"
        for _, writer in idle:
            writer.close()
        while len(unknown) > 3:
            await asyncio.sleep(0.01)


@pytest.fixture
def one_unknown(state: State) -> None:
    state.settings = state.settings.model_copy(update={"max_unknown_connections": 1})


async def test_a_key_makes_a_connection_known(state: State, one_unknown: None, server: str) -> None:
    """By the guard of all routes, and no wrong one does."""
    request = b"GET /v1/models HTTP/1.1\r\nhost: here\r\nauthorization: Bearer %s\r\n\r\n"
    port = state.settings.port
    async with connected(port) as (known, ask):
        ask.write(request % KEY.encode())
        assert b" 200 OK" in await known.readuntil(b"\r\n\r\n")
        async with connected(port) as (guesser, guess):
            guess.write(request % b"wrong")
            assert b" 401 " in await guesser.readuntil(b"\r\n\r\n")
            while not guesser.at_eof():  # it awaits the end of its answer, or has been told to go
                async with connected(port) as (newcomer, come):
                    come.write(request % KEY.encode())
                    if b" 200 OK" in await newcomer.readuntil(b"\r\n\r\n"):
                        assert b" 503 " in await everything(guesser)
        ask.write(request % KEY.encode())
        assert b" 200 OK" in await known.readuntil(b"HTTP/1.1 200 OK")
