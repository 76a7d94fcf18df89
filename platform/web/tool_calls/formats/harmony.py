"""Harmony, of gpt-oss: <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>.

One call at a time: `<|call|>` ends the answer.
"""

from collections.abc import Callable
from typing import Final

from ..characters import MOST_NAME, SPACE, Characters, NotACall, Read
from ..json_call import Sink
from .style import Style

START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL = (
    f"<|{name}|>" for name in ("start", "channel", "constrain", "message", "end", "call")
)
ENDS: Final = (CALL, "<|return|>")
"""Each ends an answer."""
FUNCTIONS: Final = "functions."
OPENING: Final = f"{CHANNEL}commentary to={FUNCTIONS}"
MOST_TYPE: Final = 64
"""Characters between a function's name and its arguments."""


def _matches(template: str) -> bool:
    return all(mark in template for mark in (CHANNEL, CALL, FUNCTIONS))


def _call(characters: Characters, sink: Sink) -> Read[None]:
    """From the function's name to the end of its arguments."""
    name, character = "", (yield from characters.next())
    while character not in "<" + SPACE:
        name, character = name + character, (yield from characters.next())
        if len(name) > MOST_NAME:
            raise NotACall
    sink.opened()
    sink.named(name)
    header = character
    while not header.endswith(MESSAGE):
        header += yield from characters.next()
        if len(header) > MOST_TYPE:
            raise NotACall
    yield from characters.expect("{")
    sink.judge((yield from characters.nested("{", sink.argue)))
    sink.done()
    sink.closed()


def _read(characters: Characters, call: Callable[[], Read[None]]) -> Read[None]:
    yield from call()
    yield from characters.expect(CALL)


def _pieces(name: str, member: str) -> tuple[str, ...]:
    return name, " ", CONSTRAIN, "json", MESSAGE


HARMONY: Final = Style(
    name="harmony",
    matches=_matches,
    opening=OPENING,
    between=CALL,
    several=False,
    marks=(START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL),
    call=_call,
    call_pieces=_pieces,
    call_end="",
    read=_read,
)
