"""Mistral: [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]."""

import hashlib
from collections.abc import Callable
from typing import Final

from ..characters import Characters, NotACall, Read
from .style import Style

ID_LENGTH: Final = 9


def _matches(template: str) -> bool:
    """Newer models write [TOOL_CALLS]name[ARGS]{…}."""
    return "[TOOL_CALLS]" in template and "[ARGS]" not in template


def _read(characters: Characters, call: Callable[[], Read[None]]) -> Read[None]:
    yield from characters.expect("[")
    yield from call()
    while (character := (yield from characters.visible())) == ",":
        yield from call()
    if character != "]":
        raise NotACall


def _call_id(call_id: str) -> str:
    """Mistral's templates take ids of nine letters and digits only."""
    if len(call_id) == ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:ID_LENGTH]


MISTRAL: Final = Style(
    name="mistral",
    matches=_matches,
    opening="[TOOL_CALLS]",
    before=" [",
    between=", ",
    after="]",
    call_id=_call_id,
    read=_read,
)
