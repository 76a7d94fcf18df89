"""Characters: a text that comes piece by piece, read one character at a time by code that reads like a grammar.

Readers are generators: each `yield` waits for the next character; where it says True, a run of PLAIN ones may come in
its place. What does not fit raises NotACall.
"""

import json
import re
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")
Read = Generator[bool, str, T]
SPACE: Final = " \t\r\n"
PLAIN: Final = re.compile(r'[^"\\{}\[\]]+')
"""What neither begins nor ends anything within an object, an array or a string of JSON."""
MOST_NAME: Final = 256
"""Characters of a member's name, and of a short value."""


class NotACall(Exception):
    """The text is no call: the character sent last does not fit."""


class Characters:
    def __init__(self) -> None:
        self._back = ""

    def next(self) -> Read[str]:
        if self._back:
            character, self._back = self._back, ""
            return character
        return (yield False)

    def next_run(self) -> Read[str]:
        """A character, or several that are PLAIN. Nothing may have been put back."""
        return (yield True)

    def put_back(self, character: str) -> None:
        """The one read last."""
        self._back = character

    def visible(self) -> Read[str]:
        """The next one that is no white space."""
        while (character := (yield from self.next())) in SPACE:
            pass
        return character

    def expect(self, text: str) -> Read[None]:
        """This text, after white space."""
        if (yield from self.visible()) != text[0]:
            raise NotACall
        for wanted in text[1:]:
            if (yield from self.next()) != wanted:
                raise NotACall

    def string(self, most: int | None = None) -> Read[str]:
        """What a JSON string says, whose opening quote has been read."""
        raw, escaped = '"', False
        while True:
            # A run would end beyond the bound, or not, by how the text is cut.
            character = yield from (self.next_run() if most is None else self.next())
            raw += character
            if character == '"' and not escaped:
                return str(parsed(raw))
            if most is not None and len(raw) > most:
                raise NotACall
            escaped = character == "\\" and not escaped

    def nested(self, opening: str, hear: Callable[[str], None] = lambda character: None) -> Read[str]:
        """The text of an object or array, whose opening character has been read; `hear` is told all of it."""
        text, character = NestedText(), opening
        while True:
            text.add(character)
            hear(character)
            if text.ended:
                return text.text
            character = yield from self.next_run()

    def value(self) -> Read[None]:
        """Any JSON value, of which nothing is wanted."""
        first = yield from self.visible()
        if first == '"':
            yield from self.string()
        elif first in "{[":
            parsed((yield from self.nested(first)))
        else:
            word = first
            while (character := (yield from self.next())) not in ",}]" + SPACE:
                word += character
                if len(word) > MOST_NAME:
                    raise NotACall
            self.put_back(character)
            parsed(word)


class NestedText:
    """The text of a JSON object or array, and where it ends. Whether it is valid shows when it is parsed."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._depth, self._in_string, self._escaped = 0, False, False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @property
    def ended(self) -> bool:
        return self._depth == 0

    def add(self, character: str) -> None:
        """Or a run of PLAIN ones."""
        self._pieces.append(character)
        if self._in_string:
            self._in_string = character != '"' or self._escaped
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises NotACall where it is none."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise NotACall from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)


def beginning_at_end(text: str, mark: str) -> int:
    """Characters at the end that may turn out to be the beginning of `mark`."""
    return next((size for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), 0)
