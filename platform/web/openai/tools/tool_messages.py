"""Calls in an assistant's message as chat templates want them, and what shows whether a template tells of tools."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ...http.errors import ApiError, invalid
from .tools import OTHER_CHOICE, Tool, ToolCall


def plain_calls(calls: list[ToolCall], path: str, source: str, call_id: Callable[[str], str]) -> list[dict[str, Any]]:
    """Arguments as objects, as templates read them. `source`: of the template; ApiError names what it cannot say."""
    if "tool_calls" not in source:
        message = f"{path}.tool_calls: this model's chat template does not support tool calls."
        words = f"{message} {REMEDY} Or leave the calls and their results out."
        raise invalid(words, f"{path}.tool_calls", "tools_not_in_template")
    return [
        {
            "id": call_id(call.id),
            "type": "function",
            "function": {"name": call.function.name, "arguments": _arguments(call, f"{path}.tool_calls[{number}]")},
        }
        for number, call in enumerate(calls)
    ]


def as_written(messages: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """Messages for a template (`source`) that shows the first call of a message alone, and takes a result for that of
    the call before it: each call apart, its result behind it. Other templates get them as they are."""
    if FIRST_ALONE not in source:
        return messages
    ordered, at = list[dict[str, Any]](), 0
    while at < len(messages):
        message, results = messages[at], list[dict[str, Any]]()
        at += 1
        while "tool_calls" in message and at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        ordered += _apart(message, results, source) if "tool_calls" in message else [message]
    return ordered


def _apart(message: dict[str, Any], results: list[dict[str, Any]], source: str) -> Iterator[dict[str, Any]]:
    """Each call of the message with its result; then the other results."""
    places = {result.get("tool_call_id"): place for place, result in reversed([*enumerate(results)])}
    own, told = _with_thinking(message) if THINKING in source else message, set[int]()
    for call in message["tool_calls"]:
        yield own | {"tool_calls": [call]}
        own, place = {"role": "assistant", "content": ""}, places.pop(call["id"], None)
        if place is not None:
            told.add(place)
            yield results[place]
    yield from (result for place, result in enumerate(results) if place not in told)


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    """Reasoning by the name that the template has for it. Beside calls it shows words as reasoning too, and refuses
    both."""
    content = message["content"]
    words = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    thought = message.get("reasoning_content") or message.get("reasoning")
    return message | {"content": "", "thinking": "\n".join(filter(None, (thought, words)))} if thought else message


def with_names_of_chance(tools: Sequence[Tool]) -> list[Tool]:
    """The same tools by names that stand in a prompt only if the template was told of them; `a` stands in any."""
    names = (f"tool_{secrets.token_hex(8)}" for _ in tools)
    return [replace(tool, function=replace(tool.function, name=name)) for tool, name in zip(tools, names, strict=True)]


def not_told(tools: Sequence[Tool]) -> ApiError:
    names = ", ".join(tool.function.name for tool in tools[:5])
    fault = f"This model's chat template does not support tools, so the model would not see them ({names})"
    return invalid(f"{fault} and cannot choose. {REMEDY} {OTHER_CHOICE}", "tools", "tools_not_in_template")


FIRST_ALONE: Final = "message.tool_calls[0]"
THINKING: Final = "message.thinking"
REMEDY: Final = (
    "Give the adapter a chat template with tools, in its serving profile (chat_template) or its own files; the "
    "operator can allow both with adapter_tokenizers. Or use a model that has one."
)


def _arguments(call: ToolCall, path: str) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        arguments, reason = None, f" ({str(error)[:100]})"
    else:
        reason = ""
    if not isinstance(arguments, dict):
        path = f"{path}.function.arguments"
        raise invalid(f"{path} must be the JSON text of an object{reason}; got {call.function.arguments[:60]!a}.", path)
    return arguments
