"""read_call: one call written as a JSON object with a name and its arguments, in any order."""

import re
from typing import Final, Protocol

from .characters import MOST_NAME, SPACE, Characters, NotACall, Read, parsed

ARGUMENTS: Final = ("arguments", "parameters")
"""Models that were taught one name of it write the other one at times."""
LONE: Final = re.compile("[\ud800-\udfff]")
"""Halves of characters, which no answer can have; JSON can, as escapes."""
BESIDE: Final = ("type", "id")
"""Other members that a call may have before it is known to be one."""


class Sink(Protocol):
    """Hears of a call while it is read."""

    def opened(self) -> None:
        """The object has begun."""

    def named(self, name: str) -> None:
        """Raises NotACall where no tool has this name."""

    def argue(self, text: str) -> None:
        """More of the text of its arguments; the name may come later."""

    def judge(self, text: str) -> None:
        """The whole text of the arguments. Raises NotACall where it is no JSON and nobody was told of it."""

    def done(self) -> None:
        """Name and arguments are whole."""

    def closed(self) -> None:
        """The object has ended."""


def read_call(characters: Characters, sink: Sink) -> Read[None]:
    """From white space before its opening brace to its closing one."""
    yield from characters.expect("{")
    sink.opened()
    missing, character = {"name", "arguments"}, (yield from characters.visible())
    while character != "}":
        yield from _member(characters, character, sink, missing)
        character = yield from characters.visible()
        if character == ",":
            character = yield from characters.visible()
            if character == "}":
                raise NotACall
        elif character != "}":
            raise NotACall
    if "name" in missing:
        raise NotACall
    if missing:
        sink.argue("{}")
        sink.done()
    sink.closed()


def _member(characters: Characters, quote: str, sink: Sink, missing: set[str]) -> Read[None]:
    """One member of the object, whose first character is `quote`; `missing` loses what it was."""
    if quote != '"':
        raise NotACall
    key = yield from characters.string(MOST_NAME)
    yield from characters.expect(":")
    key = "arguments" if key in ARGUMENTS else key
    if key not in missing:
        if missing and key not in BESIDE:
            raise NotACall
        yield from characters.value()
        return
    if key == "name":
        yield from characters.expect('"')
        sink.named((yield from characters.string(MOST_NAME)))
    else:
        yield from _arguments(characters, sink)
    missing.remove(key)
    if not missing:
        sink.done()


def _arguments(characters: Characters, sink: Sink) -> Read[None]:
    """An object; or a string that is one as JSON, or nothing, as some models write them."""
    first = yield from characters.visible()
    if first == "{":
        sink.judge((yield from characters.nested(first, sink.argue)))
    elif first == '"':
        text = yield from characters.string()
        if not isinstance(parsed(text), dict) or (not text.isascii() and LONE.search(text)):
            raise NotACall
        sink.argue(text.strip(SPACE))
    else:
        characters.put_back(first)
        yield from characters.expect("null")
        sink.argue("{}")
