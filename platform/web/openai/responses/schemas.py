"""Bodies of the Responses API as clients send them. Null members are dropped before, but for those within items."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..response_format import JsonObjectFormat, TextFormat
from ..schemas import MAX_MESSAGES, SamplingFields, Tops
from ..tools.tools import MAX_TOOLS, ToolName

LOGPROBS: Final = "message.output_text.logprobs"


class Part(msgspec.Struct):
    """Of a message, of a tool's output or of a reasoning."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    """Of one of several kinds, by its `type`; each has members of its own."""

    type: str | None = None
    """None: a message."""
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class FunctionTool(msgspec.Struct, kw_only=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(msgspec.Struct, kw_only=True, tag_field="type", tag="function", forbid_unknown_fields=True):
    name: str


class SchemaFormat(msgspec.Struct, kw_only=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=256)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    """The schema is enforced in any case."""


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None
    """Models here have no other."""


class ResponsesRequest(SamplingFields, kw_only=True):
    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    """A system message before the input."""
    max_output_tokens: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """Of tools that a server runs itself; here there are none."""
    include: tuple[
        Literal[
            "message.output_text.logprobs",
            "reasoning.encrypted_content",
            "file_search_call.results",
            "web_search_call.results",
            "web_search_call.action.sources",
            "message.input_image.image_url",
            "computer_call_output.output.image_url",
            "code_interpreter_call.outputs",
        ],
        ...,
    ] = ()
    """All but the first speak of what no answer here has."""
    top_logprobs: Tops | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    """Too long an input is refused either way."""
    metadata: (
        Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
        | None
    ) = None
    prompt_cache_key: str | None = None
    store: bool = True
    previous_response_id: Annotated[str, Meta(min_length=1, max_length=80)] | None = None
    """The input follows what that response has read and said, its instructions left out."""
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in self.include or self.top_logprobs is not None
