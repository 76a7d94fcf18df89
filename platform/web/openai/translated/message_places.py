"""MessagePlaces: messages of a chat, each with the names that the request has for it and for its parts."""

import re
from dataclasses import dataclass, field
from typing import Final

from ..schemas import ChatMessage, ContentPart
from ..tools.tools import ToolCall

IN_MESSAGES: Final = re.compile(r"messages\[(\d+)\](?:\.(content)|\.tool_calls(?:\[(\d+)\](?:\.function)?)?)?")


@dataclass(slots=True)
class Place:
    """Where in the request a message comes from: its text, and its calls."""

    item: str
    text: str
    calls: list[str] = field(default_factory=list)


class MessagePlaces:
    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self.places: list[Place] = []

    def say(self, role: str, content: str | list[ContentPart] | None, path: str, member: str) -> ChatMessage:
        """`path`: of the item in the request; `member`: of its text therein."""
        message = ChatMessage(role=role, content=content)
        self.messages.append(message)
        self.places.append(Place(path, path + member))
        return message

    def call(self, call: ToolCall, path: str) -> None:
        """It belongs to the last message, which is the assistant's."""
        calls = self.messages[-1].tool_calls = self.messages[-1].tool_calls or []
        calls.append(call)
        self.places[-1].calls.append(path)

    def in_its_terms(self, text: str) -> str:
        """What is said of messages, with the request's own paths."""
        return IN_MESSAGES.sub(self._place_of, text)

    def _place_of(self, found: re.Match[str]) -> str:
        """As it stands where there is no such place: a caller's own words may look like one."""
        number, call = int(found[1]), int(found[3] or 0)
        if number >= len(self.places):
            return found[0]
        place = self.places[number]
        if "tool_calls" in found[0]:
            return place.calls[call] if call < len(place.calls) else found[0]
        return place.text if found[2] else place.item
