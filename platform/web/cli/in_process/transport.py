"""AppTransport: an ASGI app answers httpx's requests in this process. Bodies go in and come out part by part."""

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from starlette.types import ASGIApp

Message = MutableMapping[str, Any]


class AppTransport(httpx.BaseTransport):
    """For one thread. The app's event loop runs while an answer is waited for, until this is closed.

    `httpx.ASGITransport` is for clients on an event loop, and holds a whole answer in memory.
    """

    def __init__(self, app: "ASGIApp") -> None:
        self._app, self._runner = app, asyncio.Runner()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises what the app raises."""
        answer = _Answer(self._app, request, self._runner)
        start = answer.next_message()
        assert start is not None
        return httpx.Response(start["status"], headers=start["headers"], stream=answer)

    def close(self) -> None:
        self._runner.close()


class _Answer(httpx.SyncByteStream):
    """Of one request, which the app is given at once."""

    def __init__(self, app: "ASGIApp", request: httpx.Request, runner: asyncio.Runner) -> None:
        assert isinstance(request.stream, httpx.SyncByteStream)
        self._body, self._runner = iter(request.stream), runner
        self._sent = False
        self._messages = asyncio.Queue[Message | None]()
        """Fills no further than a step of the event loop, which runs only while a message is waited for."""
        self._task = runner.get_loop().create_task(self._run(app, _scope(request)))

    def next_message(self) -> Message | None:
        """None: that was all. Raises what the app raises."""
        return self._runner.run(self._next())

    def __iter__(self) -> Iterator[bytes]:
        while (message := self.next_message()) is not None:
            yield message.get("body", b"")

    def close(self) -> None:
        """The app may be in the middle of its answer."""
        self._task.cancel()
        self._runner.run(_end_of(self._task))

    async def _next(self) -> Message | None:
        message = await self._messages.get()
        if message is None:
            await self._task
        return message

    async def _run(self, app: "ASGIApp", scope: Message) -> None:
        try:
            await app(scope, self._receive, self._messages.put)
        finally:
            self._messages.put_nowait(None)

    async def _receive(self) -> Message:
        if self._sent:
            await asyncio.Event().wait()  # until the answer ends: nobody leaves before
        part = next(self._body, None)
        self._sent = part is None
        return {"type": "http.request", "body": part or b"", "more_body": not self._sent}


async def _end_of(task: "asyncio.Task[None]") -> None:
    await asyncio.wait([task])


def _scope(request: httpx.Request) -> Message:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, None),
        "client": None,
        "state": {},
    }
