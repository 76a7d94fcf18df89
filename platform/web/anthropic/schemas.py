"""Bodies of Anthropic's Messages API as clients send them. Null members are dropped before, but for nested ones."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..openai.schemas import MAX_MESSAGES, SamplingFields
from ..openai.tools.tools import MAX_TOOLS, ToolName


class Part(msgspec.Struct):
    """Of a system prompt, or of a tool's result."""

    type: str
    text: str | None = None


class Block(msgspec.Struct):
    """Of a message, of one of several kinds, by its `type`; each has members of its own."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Part] | None = None
    is_error: bool | None = None
    """Nothing that chat templates can tell the model."""


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class MessageTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: ToolName
    input_schema: dict[str, Any]
    """JSON Schema of the input, an object."""
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None
    defer_loading: Literal[False] | None = None
    allowed_callers: tuple[Literal["direct"], ...] | None = None
    input_examples: tuple[()] | None = None


class ParallelChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`disable_parallel_tool_use`: the answer has one call at most."""

    disable_parallel_tool_use: bool | None = None


class AutoChoice(ParallelChoice, tag_field="type", tag="auto"):
    """The model may call tools."""


class AnyChoice(ParallelChoice, tag_field="type", tag="any"):
    """It must."""


class ToolNameChoice(ParallelChoice, tag_field="type", tag="tool"):
    """It must call this one."""

    name: str


class NoChoice(msgspec.Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    """It must not, and is not told of them."""


Display = Literal["summarized", "omitted"] | None
"""Thinking is never summarized here: it comes as the model wrote it, or not at all."""


class ThinkingOn(msgspec.Struct, kw_only=True, tag_field="type", tag="enabled", forbid_unknown_fields=True):
    budget_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """Models here think as much as they do."""
    display: Display = None


class ThinkingAdaptive(msgspec.Struct, kw_only=True, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    display: Display = None


class ThinkingOff(msgspec.Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """Asked of the chat template, and thinking that comes anyhow is left out."""


class OutputSchema(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: OutputSchema | None = None
    effort: str | None = None
    """Models here make the effort that they do."""


class Metadata(msgspec.Struct):
    user_id: str | None = None


class MessagesPrompt(SamplingFields, kw_only=True):
    """What a prompt is made of, and what `count_tokens` takes."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Part] | None = None
    tools: Annotated[list[MessageTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: AutoChoice | AnyChoice | ToolNameChoice | NoChoice | None = None
    thinking: ThinkingOn | ThinkingAdaptive | ThinkingOff | None = None
    output_config: OutputConfig | None = None
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    metadata: Metadata | None = None
    """`user_id` is `user`."""
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)


class MessagesRequest(MessagesPrompt, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, lt=2**31)]
