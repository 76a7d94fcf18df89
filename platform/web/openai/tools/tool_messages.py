"""Calls in an assistant's message as chat templates want them, and what shows whether a template tells of tools."""

import secrets
from collections.abc import Callable, Sequence
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


def with_names_of_chance(tools: Sequence[Tool]) -> list[Tool]:
    """The same tools by names that stand in a prompt only if the template was told of them; `a` stands in any."""
    names = (f"tool_{secrets.token_hex(8)}" for _ in tools)
    return [replace(tool, function=replace(tool.function, name=name)) for tool, name in zip(tools, names, strict=True)]


def not_told(tools: Sequence[Tool]) -> ApiError:
    names = ", ".join(tool.function.name for tool in tools[:5])
    fault = f"This model's chat template does not support tools, so the model would not see them ({names})"
    return invalid(f"{fault} and cannot choose. {REMEDY} {OTHER_CHOICE}", "tools", "tools_not_in_template")


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
