"""conversation_of: a request's system prompt and turns as messages of a chat that know their places."""

from typing import Final

import msgspec

from ..http.errors import ApiError, invalid
from ..openai.schemas import ContentPart
from ..openai.tools.tools import CalledFunction, ToolCall
from ..openai.translated.message_places import MessagePlaces
from .schemas import Block, Message, MessagesPrompt, Part

LEFT_OUT: Final = "redacted_thinking"
"""Of other models."""


def conversation_of(fields: MessagesPrompt) -> MessagePlaces:
    """Raises ApiError that names the block at fault."""
    return _Conversation(fields).told


class _Conversation:
    def __init__(self, fields: MessagesPrompt) -> None:
        self.told = MessagePlaces()
        self._called = set[str]()
        if fields.system is not None:
            self.told.say("system", _texts(fields.system, "system"), "system", "")
        for number, message in enumerate(fields.messages):
            self._read(message, f"messages[{number}]")

    def _read(self, message: Message, path: str) -> None:
        if isinstance(message.content, str):
            self._say(message.role, [ContentPart("text", message.content)], path)
            return
        thinking = ""
        if not message.content:
            self._say(message.role, [], path)
        for number, block in enumerate(message.content):
            place = f"{path}.content[{number}]"
            match (message.role, block.type):
                case (_, "text"):
                    self._say(message.role, [ContentPart("text", _member(block, "text", place))], path)
                case ("assistant", "thinking"):
                    thinking += _member(block, "thinking", place)
                case ("assistant", "tool_use"):
                    self._call(block, place, path)
                case ("user", "tool_result"):
                    self._answer(block, place)
                case ("assistant", kind) if kind == LEFT_OUT:
                    pass
                case (role, kind):
                    raise _unsupported(f"{place}.type", f"a block of type {kind[:64]!a} in a message of the {role}")
        if thinking:
            self._say("assistant", [], path)
            self.told.messages[-1].reasoning_content = thinking

    def _say(self, role: str, parts: list[ContentPart], path: str) -> None:
        """Turns of the same role in a row are one."""
        last = self.told.messages[-1] if self.told.messages else None
        if last is not None and last.role == role != "system" and isinstance(last.content, list):
            last.content += parts
            return
        self.told.say(role, parts, path, ".content")

    def _call(self, block: Block, place: str, path: str) -> None:
        call_id, name = _member(block, "id", place), _member(block, "name", place)
        if block.input is None:
            raise invalid(f"{place}.input is missing; it must be an object.", f"{place}.input")
        self._say("assistant", [], path)
        arguments = msgspec.json.encode(block.input).decode()
        self.told.call(ToolCall(id=call_id, function=CalledFunction(name=name, arguments=arguments)), place)
        self._called.add(call_id)

    def _answer(self, block: Block, place: str) -> None:
        call_id = _member(block, "tool_use_id", place)
        if call_id not in self._called:
            words = f"{place}.tool_use_id: no earlier tool_use has the id {call_id[:64]!a}. Send that block too."
            raise invalid(words, f"{place}.tool_use_id")
        content = _texts("" if block.content is None else block.content, f"{place}.content")
        self.told.say("tool", content, place, ".content").tool_call_id = call_id


def _texts(content: str | list[Part], path: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    for number, part in enumerate(content):
        if part.type != "text" or part.text is None:
            place = f"{path}[{number}].type"
            raise _unsupported(place, f"a part of type {part.type[:64]!a}, or without a text")
    return [ContentPart("text", part.text) for part in content]


def _member(block: Block, name: str, place: str) -> str:
    value: str | None = getattr(block, name)
    if value is None or (name in ("id", "name", "tool_use_id") and not value):
        raise invalid(f"{place}.{name} is missing; a {block.type} block must have it.", f"{place}.{name}")
    return value


def _unsupported(path: str, words: str) -> ApiError:
    return invalid(f"{path}: {words} is not supported. This server takes texts, tool calls and their results.", path)
