"""A request of the Responses API as one of chat completions, and what is said of that in the first one's terms."""

import re
from typing import Any, Final

import msgspec

from ...http.errors import ApiError
from ..response_format import JsonObjectFormat, JsonSchema, JsonSchemaFormat, ResponseFormat, TextFormat
from ..schemas import ChatRequest, SamplingFields
from ..tools.tools import FunctionDefinition, FunctionName, NamedTool, Tool, ToolChoice
from ..translated.refusals import in_terms_of
from .conversation import Conversation
from .schemas import FunctionTool, NamedFunction, ResponsesRequest, SchemaFormat

SHARED: Final = SamplingFields.__struct_fields__
WORDS: Final = {"max_completion_tokens": "max_output_tokens", "response_format": "text.format"}
"""Fields by their names here."""
IN_TOOLS: Final = re.compile(r"\b(tools\[\d+\])\.function\b")


def chat_of(
    fields: ResponsesRequest, conversation: Conversation, sent: frozenset[str]
) -> tuple[ChatRequest, frozenset[str]]:
    """And the members that it would have been sent with."""
    form = _form(fields)
    given: dict[str, Any] = {
        "max_completion_tokens": fields.max_output_tokens,
        "tools": None if fields.tools is None else [_tool(tool) for tool in fields.tools],
        "tool_choice": _choice(fields),
        "response_format": form,
        "top_logprobs": fields.top_logprobs,
    }
    chat = ChatRequest(
        **{name: getattr(fields, name) for name in SHARED},
        **given,
        messages=conversation.messages,
        logprobs=fields.wants_logprobs,
        parallel_tool_calls=fields.parallel_tool_calls,
        chat_template_kwargs=fields.chat_template_kwargs or {},
    )
    return chat, sent.intersection(SHARED) | {name for name, value in given.items() if value is not None}


def explain_refusal(error: ApiError, conversation: Conversation) -> ApiError:
    """A refusal of the chat."""

    def said(text: str) -> str:
        text = IN_TOOLS.sub(r"\1", conversation.with_input_paths(text))
        for name, word in WORDS.items():
            text = re.sub(rf"\b{name}\b", word, text)
        return text

    return in_terms_of(error, said)


def _tool(tool: FunctionTool) -> Tool:
    return Tool(type="function", function=FunctionDefinition(**msgspec.structs.asdict(tool)))


def _choice(fields: ResponsesRequest) -> ToolChoice | None:
    choice = fields.tool_choice
    if isinstance(choice, NamedFunction):
        return NamedTool(type="function", function=FunctionName(choice.name))
    return choice


def _form(fields: ResponsesRequest) -> ResponseFormat | None:
    form = None if fields.text is None else fields.text.format
    match form:
        case SchemaFormat():
            return JsonSchemaFormat(JsonSchema(**msgspec.structs.asdict(form)))
        case TextFormat() | JsonObjectFormat():
            return form
    return None
