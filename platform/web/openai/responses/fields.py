"""Members of a body that the Responses API here has not: refused in words, or ignored by name."""

from collections.abc import Mapping
from typing import Any, Final

from ...http.errors import invalid
from ..fields import check_fields
from ..translated.chat_fields import without_chat_fields
from .schemas import ResponsesRequest

INSTEAD: Final = {
    "conversation": "there are no conversations. Send previous_response_id, or the whole conversation in input",
    "prompt": "prompts are not stored. Send instructions and input",
    "messages": "it belongs to /v1/chat/completions. Send input",
    "max_tokens": "it belongs to /v1/chat/completions. Send max_output_tokens",
    "max_completion_tokens": "it belongs to /v1/chat/completions. Send max_output_tokens",
    "response_format": "it belongs to /v1/chat/completions. Send text.format",
    "logprobs": 'it belongs to /v1/chat/completions. Send include: ["message.output_text.logprobs"]',
    **dict.fromkeys(("n", "best_of"), "one response per request. Send several requests"),
    "context_management": "the server does not truncate inputs. Leave it out, and shorten the input",
    "moderation": "responses are not moderated. Leave it out",
}
"""Members that would change the answer: why they are refused, and what to do."""
NEUTRAL: Final[dict[str, object]] = {"n": 1, "best_of": 1, "logprobs": False}
SILENT: Final = frozenset({"stream_options", "background"})
"""Members that ask for nothing that is missing: an answer in the background is refused where it is asked for."""


def check_members(body: Mapping[str, Any]) -> list[str]:
    """Names of the members that are ignored. ApiError 400 names the first that is known and not supported."""
    for name, words in INSTEAD.items():
        if name in body and not (name in NEUTRAL and body[name] == NEUTRAL[name]):
            raise invalid(f"{name} is not supported: {words}.", name, "unsupported")
    if body.get("background"):
        words = "background is not supported: a response is made while the client waits. Leave it out"
        raise invalid(f"{words}, and set stream to true for long ones.", "background", "unsupported")
    _check_kinds(body)
    others = {name: value for name, value in body.items() if name not in (*INSTEAD, *SILENT, "reasoning")}
    known = ResponsesRequest.__struct_fields__
    return check_fields(without_chat_fields(others, known), known) + _ignored_reasoning(body)


def _check_kinds(body: Mapping[str, Any]) -> None:
    """Of tools, and of the choice among them."""
    tools = body.get("tools")
    listed = tools if isinstance(tools, list) else []
    named = {f"tools[{number}].type": tool.get("type") for number, tool in enumerate(listed) if isinstance(tool, dict)}
    if isinstance(body.get("tool_choice"), dict):
        named["tool_choice.type"] = body["tool_choice"].get("type")
    for path, kind in named.items():
        if isinstance(kind, str) and kind != "function":
            words = f"{path}: {kind[:64]!a} is not supported; tools are functions, which the client runs."
            raise invalid(words, path, "unsupported")


def _ignored_reasoning(body: Mapping[str, Any]) -> list[str]:
    """Models here think as much as they do."""
    asked = body.get("reasoning")
    said = asked.values() if isinstance(asked, dict) else [asked]
    return ["reasoning"] if any(value is not None for value in said) else []
