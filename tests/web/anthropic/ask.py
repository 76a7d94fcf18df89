"""Messages asked and their events read, each held to the anthropic package's own types."""

import json
from typing import Any

import httpx
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from ..tools import HELLO

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


async def ask(client: httpx.AsyncClient, status: int = 200, path: str = MESSAGES, **fields: Any) -> Any:
    """The answer, or the error."""
    answer = await client.post(path, json=body_of(path, fields))
    assert answer.status_code == status, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    if status != 200:
        return error_of(answer)
    if path == MESSAGES:
        Message.model_validate(answer.json(), strict=True)
    return answer.json()


def error_of(answer: httpx.Response) -> dict[str, str]:
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"] and set(body["error"]) == {"type", "message"}
    error: dict[str, str] = body["error"]
    return error


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    bound = {"max_tokens": 100} if path == MESSAGES else {}
    return {"model": "tiny", "messages": HELLO, **bound, **fields}


async def events_of(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    """Without pings; each named as its type and as the package has it."""
    answer = await client.post(MESSAGES, json=body_of(MESSAGES, fields) | {"stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] == "ping":
            continue
        if event["type"] != "error":
            EVENT.validate_python(event)
        events.append(event)
    return events
