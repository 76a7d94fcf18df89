"""Tools as requests name them, in OpenAI's fields, and calls of them in messages."""

from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import Meta

from ...http.errors import invalid
from ...tool_calls.schema_check import fault_of_parameters

MAX_TOOLS: Final = 512
OTHER_CHOICE: Final = "Or send tool_choice: required or a function, which a grammar enforces, or none."
"""Advice where the model cannot choose. Other APIs put their own in its place."""
ToolName = Annotated[str, Meta(pattern=r"^(?!.*\n)[a-zA-Z0-9_.-]{1,64}$")]
"""Python's $ alone would let a line break follow."""


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments, an object; left out: there are none."""
    strict: bool | None = None
    """Calls of it follow the schema, also where the model may choose."""
    returned: dict[str, Any] | None = msgspec.field(default=None, name="return")
    """Schema of what it returns, as transformers.utils.get_json_schema writes it: for the template alone."""
    cache_control: Any = None
    """Other services' hint on what to cache: changes no answer."""


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionDefinition
    cache_control: Any = None

    def as_json(self) -> dict[str, Any]:
        """As chat templates get it: in the order in which models were trained on it."""
        function, words = self.function, dict[str, Any]()
        if function.description is not None:
            words["description"] = function.description
        if function.parameters is not None:
            words["parameters"] = function.parameters
        if function.returned is not None:
            words["return"] = function.returned
        return {"type": "function", "function": {"name": function.name, **words}}

    def schema(self) -> dict[str, Any]:
        """Of the arguments, which are an object."""
        if self.function.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return {"type": "object", **self.function.parameters}


class FunctionName(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Echoed(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What clients send back that stood beside a call, or that other services put there: changes no answer."""

    index: Any = None
    """Of a delta, kept by who put a stream together."""
    parsed_arguments: Any = None
    """`arguments` once more, as the openai package has read them."""
    extra_content: Any = None
    provider_specific_fields: Any = None
    """Signatures of other services' models, for these alone."""
    cache_control: Any = None


class CalledFunction(Echoed, kw_only=True):
    name: str
    arguments: str
    """JSON text of an object."""


class ToolCall(Echoed, kw_only=True):
    """What an assistant's message says of a call."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    type: Literal["function"] = "function"
    function: CalledFunction


class Asking(Protocol):
    """The fields of a request that say which tools there are."""

    tools: list[Tool] | None
    tool_choice: ToolChoice | None


def demands_call(request: Asking) -> bool:
    """The answer is calls and nothing else."""
    return isinstance(request.tool_choice, NamedTool) or request.tool_choice == "required"


def offered_tools(request: Asking) -> list[Tool]:
    """Those that the model is told of, checked; none with tool_choice none. Raises ApiError that names the tool."""
    tools = request.tools or []
    if not tools:
        if demands_call(request):
            raise invalid("tool_choice requires a tool call, but there are no tools. Send tools.", "tool_choice")
        return []
    names = [tool.function.name for tool in tools]
    for number, tool in enumerate(tools):
        if tool.function.name in names[:number]:
            path = f"tools[{number}].function.name"
            raise invalid(f"{path}: there are two tools '{tool.function.name}'. Give each its own name.", path)
        fault = fault_of_parameters(tool.function.parameters or {})
        if fault is not None:
            path = f"tools[{number}].function.parameters"
            raise invalid(f"{path}: the schema of the tool '{tool.function.name}' is invalid: {fault}.", path)
    choice = request.tool_choice
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        message = f"tool_choice names '{choice.function.name[:64]}', which is not among the tools: {', '.join(names)}."
        raise invalid(message[:1000], "tool_choice")
    return [] if choice == "none" else tools
