"""The older way of tools, `functions` and `function_call`, as the newer one; what is refused of it keeps its words."""

import re
from typing import Final, TypeVar

from msgspec.structs import replace

from ...http.errors import ApiError, invalid
from ..schemas import ChatMessage, ChatRequest
from ..tools.tools import OTHER_CHOICE, FunctionName, NamedTool, Tool, ToolCall
from .refusals import in_terms_of

Chat = TypeVar("Chat", bound=ChatRequest)
IN_CALLS: Final = re.compile(r"\bmessages\[(\d+)\]\.tool_calls(\[0\]\.function)?")
WORDS: Final = (
    (re.escape(OTHER_CHOICE), 'Or send function_call: {"name": ...}, which a grammar enforces, or none.'),
    (r"\btools(\[\d+\])\.function\b", r"functions\1"),
    (r"\btools\b(?=$| is | are )", "functions"),
    (r"\btool_choice\b", "function_call"),
)
"""Fields by their names there."""


def with_tools(fields: Chat) -> Chat:
    """Raises ApiError for what is said in both ways."""
    messages = _with_calls(fields.messages)
    if messages is not fields.messages:
        fields = replace(fields, messages=messages)
    if fields.functions is None and fields.function_call is None:
        return fields
    if fields.function_call is not None and not fields.functions:
        raise invalid("function_call only goes with functions; send functions, or leave it out.", "function_call")
    for newer in ("tools", "tool_choice"):
        if getattr(fields, newer) is not None:
            raise invalid(f"{newer} and functions are two ways of the same; send tools and tool_choice.", "functions")
    tools = [Tool(type="function", function=function) for function in fields.functions or ()]
    choice = fields.function_call
    named = NamedTool(type="function", function=choice) if isinstance(choice, FunctionName) else choice
    return replace(fields, tools=tools, tool_choice=named, parallel_tool_calls=False)


def explain_refusal(fields: ChatRequest, error: ApiError) -> ApiError:
    """`fields`: as `with_tools` has made them."""

    def place(found: re.Match[str]) -> str:
        messages, number = fields.messages, int(found[1])
        older = number < len(messages) and messages[number].function_call is not None
        return f"messages[{number}].function_call" if older else found[0]

    def said(text: str) -> str:
        for pattern, word in WORDS if fields.functions is not None else ():
            text = re.sub(pattern, word, text)
        return IN_CALLS.sub(place, text)

    return in_terms_of(error, said)


def _with_calls(messages: list[ChatMessage]) -> list[ChatMessage]:
    """The same list where none of them has a function's call or result."""
    if all(message.function_call is None and message.role != "function" for message in messages):
        return messages
    called = dict[str, str]()
    return [_with_call(message, number, called) for number, message in enumerate(messages)]


def _with_call(message: ChatMessage, number: int, called: dict[str, str]) -> ChatMessage:
    """`called`: ids of calls by the function's name. A message keeps its function_call: refusals name it."""
    path = f"messages[{number}]"
    if message.function_call is not None:
        if message.tool_calls:
            raise invalid(f"{path} has both function_call and tool_calls; send one.", f"{path}.function_call")
        call = ToolCall(id=f"call_{number:09d}", function=message.function_call)
        called[call.function.name] = call.id
        return replace(message, tool_calls=[call])
    if message.role == "function":
        if message.name not in called:
            words = f"{path}.name: no earlier function_call has this name. Also send the message that it answers."
            raise invalid(words, f"{path}.name")
        return replace(message, role="tool", tool_call_id=called[message.name])
    return message
