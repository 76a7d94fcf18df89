"""What crosses the border between the engine and its grammar process. Msgpack, framed as in `engine/processes/link.py`.

A choice has a number of its own, never used again, in which both speak of it.
"""

import msgspec

from ..protocol import AddedToken


class Open(msgspec.Struct, tag=True, kw_only=True):
    """Begin to follow a choice. Answered by Refused, or by Began, possibly, and Allowed."""

    choice: int
    kind: str
    text: str
    """As of StructuredOutputs.source()."""
    added_tokens: list[AddedToken] = []
    """Of the tokenizer, beyond those of the base's."""
    tokens: list[int] = []
    """It has drawn these already."""
    tenant: str = ""
    """Tenants take turns in having grammars compiled."""
    compiled_before: bool = False
    """By a process that ended since."""


class Advance(msgspec.Struct, tag=True, kw_only=True):
    """Choices and the tokens that each has drawn. Each is answered by Allowed or Refused."""

    drawn: list[tuple[int, list[int]]]


class Close(msgspec.Struct, tag=True, kw_only=True):
    """Forget these."""

    choices: list[int]


class Began(msgspec.Struct, tag=True, kw_only=True):
    """Its grammar is compiled from now on; what ends the process or lasts too long is its fault."""

    choice: int


class Allowed(msgspec.Struct, tag=True, kw_only=True):
    """What may come next."""

    choice: int
    tokens: bytes
    """One bit a token of the vocabulary, the lowest bit of a byte first."""
    complete: bool
    """The text may end here."""
    compile_seconds: float | None = None
    """What its grammar took, where it was compiled for this."""


class Refused(msgspec.Struct, tag=True, kw_only=True):
    """It cannot be followed (any further), and why."""

    choice: int
    reason: str
    compile_seconds: float | None = None
    """As of Allowed."""


ToGrammars = Open | Advance | Close
FromGrammars = Began | Allowed | Refused
