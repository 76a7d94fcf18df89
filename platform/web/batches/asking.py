"""ask: one request of the server to itself, on behalf of a caller. It takes the way of every other."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Scope

from ..access.caller import Caller
from ..http.middleware import CALLER


@dataclass(slots=True)
class Answered:
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


async def ask(app: ASGIApp, caller: Caller, path: str, body: bytes, request_id: str) -> Answered:
    """The answer to a POST of a JSON body."""
    answered, unsent = Answered(), [body]

    async def receive() -> Message:
        if not unsent:
            await asyncio.Event().wait()  # nobody hangs up
        return {"type": "http.request", "body": unsent.pop(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = {name.decode().lower(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            answered.body += message.get("body", b"")

    await app(_scope(caller, path, body, request_id), receive, send)
    return answered


def _scope(caller: Caller, path: str, body: bytes, request_id: str) -> Scope:
    headers = {"content-type": "application/json", "content-length": str(len(body)), "x-request-id": request_id}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
        "state": {},
        CALLER: caller,
    }
