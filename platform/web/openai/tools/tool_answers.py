"""Answers with tool calls as OpenAI's API has them, whole and in deltas."""

import uuid
from typing import Any

import msgspec

from ...tool_calls.events import Arguments, Begun, Event, Words
from ...tool_calls.reader import CallReader

encode = msgspec.json.encode


def whole_message(events: list[Event]) -> dict[str, Any]:
    """The message of a choice."""
    words, calls = "", list[dict[str, Any]]()
    for event in events:
        match event:
            case Words():
                words += event.text
            case Begun():
                calls.append(_call(event))
            case Arguments():
                calls[event.number]["function"]["arguments"] += event.text
    message = {"role": "assistant", "content": None if calls and not words else words, "refusal": None}
    return message | ({"tool_calls": calls} if calls else {})


def delta_of(event: Event) -> bytes:
    """The delta of a chunk; every call in it has its index."""
    match event:
        case Words():
            return b'{"content":' + encode(event.text) + b"}"
        case Begun():
            return encode({"tool_calls": [{"index": event.number, **_call(event)}]})
        case Arguments():
            return encode({"tool_calls": [{"index": event.number, "function": {"arguments": event.text}}]})


def is_cut(finish_reason: str | None, stop_reason: int | str | None) -> bool:
    """Whether the model had not come to its end."""
    return finish_reason != "stop" or stop_reason is not None


def finish_reason_of(reader: CallReader, finish_reason: str | None) -> str | None:
    """tool_calls, where there are some and all are whole."""
    return "tool_calls" if finish_reason == "stop" and reader.calls and not reader.broken else finish_reason


def _call(event: Begun) -> dict[str, Any]:
    call_id = f"call_{uuid.uuid4().hex[:24]}"
    return {"id": call_id, "type": "function", "function": {"name": event.name, "arguments": ""}}
