"""What the Responses API answers, as types that a document can be made of."""

from typing import Any, Literal, TypedDict

import msgspec

from .public_answers import ChatToken

ItemStatus = Literal["completed", "incomplete"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """`arguments`: JSON text of an object."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(TypedDict):
    reason: Literal["max_output_tokens"]


class Reasoning(TypedDict):
    effort: None
    summary: None


class AnsweredTool(TypedDict):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class AnswerText(TypedDict):
    format: dict[str, Any]
    verbosity: Literal["medium"]


class ResponseAnswer(TypedDict):
    """`output`: reasoning, messages and calls in the order in which they came; the rest repeats what was asked."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ItemStatus
    error: None
    incomplete_details: Incomplete | None
    model: str
    output: list[OutputReasoning | OutputMessage | OutputCall]
    usage: ResponseUsage
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    safety_identifier: str | None
    temperature: float
    tool_choice: str | dict[str, Any]
    tools: list[AnsweredTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    text: AnswerText
    reasoning: Reasoning
    service_tier: Literal["default"]
    background: Literal[False]
    store: bool
    previous_response_id: str | None
    user: str | None


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(TypedDict):
    """`data`: items as they were sent, each with an id, a type and a status."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int
