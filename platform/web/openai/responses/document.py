"""The document of a response: what was asked, and what has come of it."""

import time
from typing import Any, Final

import msgspec

from ...http.errors import ApiError
from ...quotas.meters import Usage
from ..schemas import ChatRequest
from .output import new_id
from .schemas import FunctionTool, ResponsesRequest, TextOptions

ECHOED: Final = (
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "prompt_cache_key"),
    *("previous_response_id", "safety_identifier", "truncation", "user"),
)
"""Members of the request that its answer repeats."""


class Document:
    """Of one response, at any moment of its life."""

    def __init__(self, fields: ResponsesRequest, chat: ChatRequest, kept_as: str | None) -> None:
        """`chat`: the request as a chat, with what the serving profile says for it. `kept_as`: its id; None: it is not
        kept."""
        text = fields.text or TextOptions()
        self._members: dict[str, Any] = {
            "id": kept_as or new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            **{name: getattr(fields, name) for name in ECHOED},
            "metadata": fields.metadata or {},
            "tools": [_tool(tool) for tool in fields.tools or ()],
            "tool_choice": "auto" if fields.tool_choice is None else msgspec.to_builtins(fields.tool_choice),
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "text": {
                "format": {"type": "text"} if text.format is None else msgspec.to_builtins(text.format),
                "verbosity": "medium",
            },
            "top_logprobs": fields.top_logprobs or 0,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "background": False,
            "store": kept_as is not None,
            "temperature": chat.temperature,
            "top_p": chat.top_p,
        }

    def at(
        self,
        status: str,
        items: list[dict[str, Any]],
        usage: Usage | None = None,
        error: ApiError | None = None,
    ) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return self._members | {
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "output": items,
            "incomplete_details": cut,
            "error": None if error is None else {"code": "server_error", "message": error.message},
            "usage": None if usage is None else _usage(usage),
        }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
