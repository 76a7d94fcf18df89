"""A request of the Messages API as one of chat completions, and what is said of that in the first one's terms."""

import re
from typing import Any, Final

from ..http.errors import ApiError
from ..openai.response_format import JsonSchema, JsonSchemaFormat
from ..openai.schemas import ChatRequest, SamplingFields
from ..openai.tools.tools import OTHER_CHOICE, FunctionDefinition, FunctionName, NamedTool, Tool, ToolChoice
from ..openai.translated.message_places import MessagePlaces
from ..openai.translated.refusals import in_terms_of
from .schemas import (
    AnyChoice,
    MessagesPrompt,
    MessagesRequest,
    MessageTool,
    NoChoice,
    ParallelChoice,
    ThinkingOff,
    ToolNameChoice,
)

SHARED: Final = SamplingFields.__struct_fields__
WORDS: Final = (
    (
        re.escape(OTHER_CHOICE),
        'Or send tool_choice: {"type": "any"} or one of type tool, which a grammar enforces, or {"type": "none"}.',
    ),
    (r"\b(tools\[\d+\])\.function\.parameters\b", r"\1.input_schema"),
    (r"\b(tools\[\d+\])\.function\b", r"\1"),
    (r"\bresponse_format\b", "output_config.format"),
    (r"tool_choice: none\b", 'tool_choice: {"type": "none"}'),
)
"""Fields by their names here."""
TOO_LONG: Final = "prompt is too long"
"""As Anthropic says it: clients look for the words."""


def chat_of(
    fields: MessagesPrompt, conversation: MessagePlaces, sent: frozenset[str]
) -> tuple[ChatRequest, frozenset[str]]:
    """And the members that it would have been sent with."""
    messages = conversation.messages
    given: dict[str, Any] = {
        "max_tokens": fields.max_tokens if isinstance(fields, MessagesRequest) else None,
        "stop": fields.stop_sequences or None,
        "user": None if fields.metadata is None else fields.metadata.user_id,
        "tools": None if fields.tools is None else [_tool(tool) for tool in fields.tools],
        "tool_choice": _choice(fields),
        "parallel_tool_calls": False if _is_single(fields) else None,
        "response_format": _form(fields),
    }
    given = {name: value for name, value in given.items() if value is not None}
    shared = {name: getattr(fields, name) for name in SHARED if name not in given}
    chat = ChatRequest(
        **shared,
        **given,
        messages=messages,
        continue_final_message=messages[-1].role == "assistant",
        chat_template_kwargs=_variables(fields),
        include_reasoning=_shows_thinking(fields),
    )
    return chat, sent.intersection(SHARED) | given.keys()


def explain_refusal(error: ApiError, conversation: MessagePlaces) -> ApiError:
    """A refusal of the chat."""

    def said(text: str) -> str:
        text = conversation.in_its_terms(text)
        for pattern, word in WORDS:
            text = re.sub(pattern, word, text)
        return re.sub(r"\bstop\b", "stop_sequences", text) if error.param == "stop" else text

    told = in_terms_of(error, said)
    if error.code == "context_length_exceeded":
        told.message = f"{TOO_LONG}: {told.message}"
    return told


def _tool(tool: MessageTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return Tool(type="function", function=function)


def _choice(fields: MessagesPrompt) -> ToolChoice | None:
    match fields.tool_choice:
        case ToolNameChoice(name=name):
            return NamedTool(type="function", function=FunctionName(name))
        case AnyChoice():
            return "required"
        case NoChoice():
            return "none"
    return None


def _is_single(fields: MessagesPrompt) -> bool:
    choice = fields.tool_choice
    return isinstance(choice, ParallelChoice) and choice.disable_parallel_tool_use is True


def _form(fields: MessagesPrompt) -> JsonSchemaFormat | None:
    form = None if fields.output_config is None else fields.output_config.format
    return None if form is None else JsonSchemaFormat(JsonSchema(name="output", schema=form.schema))


def _variables(fields: MessagesPrompt) -> dict[str, Any]:
    """Templates of models that may think or not know the variable."""
    if fields.thinking is None:
        return fields.chat_template_kwargs
    return {"enable_thinking": not isinstance(fields.thinking, ThinkingOff), **fields.chat_template_kwargs}


def _shows_thinking(fields: MessagesPrompt) -> bool:
    thinking = fields.thinking
    return not isinstance(thinking, ThinkingOff) and getattr(thinking, "display", None) != "omitted"
