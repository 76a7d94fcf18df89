"""Llama 3.1 and 3.2: an answer that is {"name": …, "parameters": {…}}, with or without <|python_tag|> before it."""

from collections.abc import Callable
from typing import Final

from ..characters import Characters, NotACall, Read
from .style import Style


def _matches(template: str) -> bool:
    return "<|start_header_id|>" in template and '"parameters":' in template.replace("\\", "")


def _read(characters: Characters, call: Callable[[], Read[None]]) -> Read[None]:
    yield from call()
    while (yield from characters.visible()) == ";":
        yield from call()
    raise NotACall


LLAMA3_JSON: Final = Style(
    name="llama3_json",
    matches=_matches,
    opening="<|python_tag|>",
    bare=True,
    between="; ",
    arguments="parameters",
    several=False,
    read=_read,
)
