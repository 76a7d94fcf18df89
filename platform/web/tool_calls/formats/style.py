"""Style: one way in which models write tool calls."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..characters import Characters, Read
from ..json_call import Sink, read_call

PLAIN_ID: Final[Callable[[str], str]] = str


def json_pieces(name: str, member: str) -> tuple[str, ...]:
    """In the pieces that JSON has as well: the text of an answer in JSON may begin alike."""
    return "{", '"name"', ": ", json.dumps(name), ", ", f'"{member}"', ": "


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A run of calls is `opening`, `before`, calls with `between`, `after`, `closing`; texts but the opening may have
    white space around them where they are read."""

    name: str
    """As the setting tool_call_parser has it."""
    matches: Callable[[str], bool]
    """Whether a chat template (its Jinja source) surely teaches this style."""
    opening: str
    """Marks the beginning of calls; a token of its own in many tokenizers."""
    closing: str = ""
    bare: bool = False
    """Calls may do without the opening where the answer begins with a brace."""
    before: str = ""
    between: str = ""
    after: str = ""
    arguments: str = "arguments"
    """The member that the arguments are in."""
    next_run: str | None = None
    """Stands between runs; None: an answer has one run."""
    several: bool = True
    """Whether models of this style are taught to call several tools at once."""
    call_id: Callable[[str], str] = PLAIN_ID
    """The id of a call as templates want it."""
    marks: tuple[str, ...] = ()
    """Special tokens within its texts, opening and closing apart."""
    call: Callable[[Characters, Sink], Read[None]] = read_call
    """Reads a call, and tells of it."""
    call_pieces: Callable[[str, str], tuple[str, ...]] = json_pieces
    """(name, `arguments`) -> what stands before a call's arguments, in a grammar's pieces."""
    call_end: str = "}"
    """What stands behind them."""
    read: "Callable[[Characters, Callable[[], Read[None]]], Read[None]]"
    """Read a run, whose opening has been read: `call()` reads a call. Ends with the run's last character, or with
    NotACall at the first one that does not belong to it."""

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (self.opening, self.closing, *self.marks) if marker)
