"""Malformed Host headers, as raw bytes to the real server: whatever they say, no route opens without a key."""

import asyncio

import pytest

from loraplex.web.state import State

from .test_access import MATRIX, OTHERWISE_TESTED, PUBLIC
from .test_streams import server

__all__ = ["server"]
HOSTS: dict[str, bytes] = {
    "a path that is public": b"Host: test/health?\r\n",
    "a path and a fragment": b"Host: test/login#\r\n",
    "an absolute address": b"Host: http://test/static/app.css\r\n",
    "a login": b"Host: admin@127.0.0.1\r\n",
    "a port beyond all": b"Host: test:99999\r\n",
    "no port": b"Host: test:\r\n",
    "an open bracket": b"Host: [::1\r\n",
    "empty": b"Host: \r\n",
    "none": b"",
    "two": b"Host: test\r\nHost: 127.0.0.1\r\n",
    "long": b"Host: " + b"x" * 5000 + b"\r\n",
    "a tab and a backslash": b"Host: te\tst\\@127.0.0.1/health\r\n",
    "bytes that are no text": b"Host: \xff\xfe\x80\r\n",
    "another header hidden in it": b"Host: test\rX-Forwarded-Prefix: /health\r\n",
}
GUARDED = sorted(route for route, needed in MATRIX.items() if needed != PUBLIC and route not in OTHERWISE_TESTED)


@pytest.fixture
def state(state: State) -> State:
    """/metrics asks for a key, also on this machine."""
    state.settings = state.settings.model_copy(update={"public_metrics": False})
    return state


class Talk:
    """One connection after another, for as long as the server keeps each."""

    def __init__(self, address: str) -> None:
        self._host, self._port = address.removeprefix("http://").split(":")
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, route: str, host: bytes) -> int:
        method, path = route.split(" ")
        path = path.replace("{", "").replace("}", "").replace(":path", "")
        head = f"{method} {path} HTTP/1.1\r\nContent-Length: 0\r\n".encode()
        reader, writer = self._streams or await asyncio.open_connection(self._host, int(self._port))
        self._streams = reader, writer
        writer.write(head + host + b"\r\n")
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
        await reader.readexactly(length)
        if "connection: close" in answer:
            self.close()
        return int(answer.split(" ")[1])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


@pytest.mark.parametrize("kind", HOSTS)
async def test_no_host_opens_a_route(server: str, kind: str) -> None:
    assert len(GUARDED) > 80
    talk, statuses = Talk(server), set()
    async with asyncio.timeout(120):
        for route in GUARDED:
            status = await talk.ask(route, HOSTS[kind])
            assert status in (400, 401), (route, status)
            statuses.add(status)
        talk.close()
        if statuses == {401}:  # it was taken for a name: then what is public answers by it
            assert await talk.ask("GET /health", HOSTS[kind]) == 200
    talk.close()
