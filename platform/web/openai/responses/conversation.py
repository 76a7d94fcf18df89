"""Conversation: the items of an input as messages of a chat, each with the name that the request has for it."""

from collections.abc import Sequence
from typing import Final, NoReturn

from ...http.errors import ApiError, invalid
from ..schemas import ChatMessage, ContentPart
from ..tools.tools import CalledFunction, ToolCall
from ..translated.message_places import MessagePlaces
from .schemas import Item, Part, ResponsesRequest

ROLES: Final = ("user", "assistant", "system", "developer")
TEXTS: Final = frozenset({"input_text", "output_text", "text", "reasoning_text"})


class Conversation:
    def __init__(self, fields: ResponsesRequest, earlier: Sequence[Item] = ()) -> None:
        """`earlier`: what the previous response has read and said. Raises ApiError that names the item at fault."""
        self._told = MessagePlaces()
        self._reasoning = ""
        """Of the assistant's message that follows."""
        self._called = set[str]()
        if fields.instructions is not None:
            self._say("system", fields.instructions, "instructions", "")
        for item in earlier:
            self._read(item, "previous_response_id")
        if isinstance(fields.input, str):
            self._say("user", fields.input, "input", "")
            return
        for number, item in enumerate(fields.input):
            self._read(item, f"input[{number}]")

    @property
    def messages(self) -> list[ChatMessage]:
        return self._told.messages

    def with_input_paths(self, text: str) -> str:
        """What is said of messages, in terms of the items."""
        if text.partition(" ")[0] == "messages":
            return "input" + text.removeprefix("messages")
        return self._told.in_its_terms(text)

    def _read(self, item: Item, path: str) -> None:
        match item.type or "message":
            case "message":
                self._read_message(item, path)
            case "function_call":
                self._read_call(item, path)
            case "function_call_output":
                self._read_output(item, path)
            case "reasoning":
                self._reasoning = "\n".join(part.text or "" for part in item.content or () if isinstance(part, Part))
            case "item_reference":
                raise _unsupported(f"{path}.type", "items have no ids of their own here. Send the item itself")
            case kind:
                raise _unsupported(f"{path}.type", f"an item of type {kind[:64]!a}. Leave it out")

    def _read_message(self, item: Item, path: str) -> None:
        if item.role not in ROLES:
            got = "it is missing" if item.role is None else f"got {item.role[:40]!a}"
            raise invalid(f"{path}.role must be one of {', '.join(ROLES)}; {got}.", f"{path}.role")
        if item.content is None:
            _refuse_missing(f"{path}.content", "a string or a list of parts")
        self._say(item.role, _texts(item.content, f"{path}.content"), path, ".content")

    def _read_call(self, item: Item, path: str) -> None:
        """Calls belong to what the assistant said before them."""
        if not item.call_id:
            _refuse_missing(f"{path}.call_id", "a string")
        if item.name is None or item.arguments is None:
            _refuse_missing(f"{path}.{'name' if item.name is None else 'arguments'}", "a string")
        if not self.messages or self.messages[-1].role != "assistant":
            self._say("assistant", None, path, "")
        function = CalledFunction(name=item.name, arguments=item.arguments)
        self._told.call(ToolCall(id=item.call_id, function=function), path)
        self._called.add(item.call_id)

    def _read_output(self, item: Item, path: str) -> None:
        if item.call_id not in self._called:
            words = f"{path}.call_id: no earlier function_call has this call_id. Also send the call that this"
            raise invalid(f"{words} output answers, or previous_response_id.", f"{path}.call_id")
        if item.output is None:
            _refuse_missing(f"{path}.output", "a string or a list of parts")
        self._say("tool", _texts(item.output, f"{path}.output"), path, ".output")
        self.messages[-1].tool_call_id = item.call_id

    def _say(self, role: str, content: str | list[ContentPart] | None, path: str, member: str) -> None:
        message = self._told.say(role, content, path, member)
        if role == "assistant" and self._reasoning:
            message.reasoning_content = self._reasoning
        self._reasoning = ""


def _texts(content: str | list[Part], path: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    return [ContentPart("text", _text(part, f"{path}[{number}]")) for number, part in enumerate(content)]


def _text(part: Part, path: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text if part.type in TEXTS else None
    if text is None:
        words = f"{path}: only parts of type input_text or output_text are supported, and each needs a text."
        raise invalid(words, f"{path}.type", "unsupported")
    return text


def _unsupported(path: str, words: str) -> ApiError:
    return invalid(f"{path} is not supported: {words}.", path, "unsupported")


def _refuse_missing(path: str, kind: str) -> NoReturn:
    raise invalid(f"{path} is missing; it must be {kind}.", path)
