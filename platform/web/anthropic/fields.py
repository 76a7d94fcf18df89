"""Members of a body that the Messages API here has not: refused in words, or ignored by name."""

from collections.abc import Mapping
from typing import Any, Final

from ..http.errors import invalid
from ..openai.fields import check_fields
from ..openai.translated.chat_fields import without_chat_fields
from .schemas import MessagesRequest

ELSEWHERE: Final = "it belongs to /v1/chat/completions"
INSTEAD: Final = {
    "stop": f"{ELSEWHERE}. Send stop_sequences",
    "user": f"{ELSEWHERE}. Send metadata.user_id",
    "max_completion_tokens": f"{ELSEWHERE}. Send max_tokens",
    "response_format": f"{ELSEWHERE}. Send output_config.format",
    "output_format": "its newer name is output_config.format. Send that",
    "parallel_tool_calls": f"{ELSEWHERE}. Send tool_choice.disable_parallel_tool_use",
    **dict.fromkeys(("n", "best_of"), "one message per request. Send several requests"),
    "logprobs": "messages have no log-probabilities. Use /v1/chat/completions",
    "container": "this server runs no code. Leave it out",
    "mcp_servers": "tools are functions, which the client runs. Leave it out",
    "context_management": "the server does not truncate prompts. Leave it out, and shorten messages",
}
"""Members that would change the answer: why they are refused, and what to do."""
NEUTRAL: Final[dict[str, tuple[object, ...]]] = {"n": (1,), "best_of": (1,), "logprobs": (False,), "mcp_servers": ([],)}


def check_members(body: Mapping[str, Any], known: tuple[str, ...]) -> list[str]:
    """Names of the members that are ignored. ApiError 400 names the first that is known and not supported."""
    for name, words in INSTEAD.items():
        if name in body and body[name] not in NEUTRAL.get(name, ()):
            raise invalid(f"{name} is not supported: {words}.", name, "unsupported")
    _check_kinds(body.get("tools"))
    others = {name: value for name, value in body.items() if name not in (*INSTEAD, "messages")}
    others = without_chat_fields(others, MessagesRequest.__struct_fields__)
    return [*check_fields(others, known), *_ignored_within(body)]


def _check_kinds(tools: object) -> None:
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            path = f"tools[{number}].type"
            words = f"{path}: {kind[:64]!a} is not supported; tools have a name and an input_schema."
            raise invalid(words, path, "unsupported")


def _ignored_within(body: Mapping[str, Any]) -> list[str]:
    """Models here think as much as they do, and are told a tool's result, not whether it is an error."""
    found = [f"{name}.{member}" for name, member in WITHIN if _member(body.get(name), member) is not None]
    messages = body.get("messages")
    blocks = (
        block
        for message in (messages if isinstance(messages, list) else ())
        for block in _listed(_member(message, "content"))
    )
    return found + (["messages.content.is_error"] if any(_member(block, "is_error") for block in blocks) else [])


WITHIN: Final = (("thinking", "budget_tokens"), ("output_config", "effort"))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _member(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
