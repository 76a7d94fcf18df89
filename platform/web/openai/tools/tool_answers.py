"""What answers are made of as chat completions have it, whole and in deltas.

Reasoning has two names: `reasoning_content` is DeepSeek's and SGLang's, `reasoning` OpenRouter's and vLLM's; each has
clients that know no other.
"""

import uuid
from typing import Any

import msgspec

from ...tool_calls.events import Arguments, Begun, Event, Reasoning, Words

encode = msgspec.json.encode


def whole_message(events: list[Event], in_functions: bool = False) -> dict[str, Any]:
    """The message of a choice. `in_functions`: its one call is told in the older way."""
    thought, words, calls = "", "", list[dict[str, Any]]()
    for event in events:
        match event:
            case Reasoning():
                thought += event.text
            case Words():
                words += event.text
            case Begun():
                calls.append(_call(event))
            case Arguments():
                calls[event.number]["function"]["arguments"] += event.text
    content = words if words or not (calls or thought) else None
    message = {"role": "assistant", "content": content, "refusal": None}
    told = {"function_call": calls[0]["function"]} if in_functions and calls else {"tool_calls": calls}
    return message | _reasoning(thought) | (told if calls else {})


def delta_of(event: Event) -> bytes:
    """The delta of a chunk; every call in it has its index."""
    match event:
        case Reasoning():
            return encode(_reasoning(event.text))
        case Words():
            return b'{"content":' + encode(event.text) + b"}"
        case Begun():
            return encode({"tool_calls": [{"index": event.number, **_call(event)}]})
        case Arguments():
            return encode({"tool_calls": [{"index": event.number, "function": {"arguments": event.text}}]})


def function_delta_of(event: Event) -> bytes:
    """The same in the older way."""
    match event:
        case Begun():
            return encode({"function_call": {"name": event.name, "arguments": ""}})
        case Arguments():
            return encode({"function_call": {"arguments": event.text}})
    return delta_of(event)


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _call(event: Begun) -> dict[str, Any]:
    call_id = f"call_{uuid.uuid4().hex[:24]}"
    return {"id": call_id, "type": "function", "function": {"name": event.name, "arguments": ""}}
