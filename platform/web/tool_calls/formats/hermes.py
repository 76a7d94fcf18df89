"""Hermes, of Nous Research's models and Qwen2.5 to 3: <tool_call>{"name": …, "arguments": {…}}</tool_call>."""

from collections.abc import Callable
from typing import Final

from ..characters import Characters, Read
from .style import Style

OTHERS: Final = ("<function=", "<arg_key>")
"""What else templates put into <tool_call>."""


def _matches(template: str) -> bool:
    return "<tool_call>" in template and "arguments" in template and not any(other in template for other in OTHERS)


def _read(characters: Characters, call: Callable[[], Read[None]]) -> Read[None]:
    yield from call()
    yield from characters.expect("</tool_call>")


HERMES: Final = Style(
    name="hermes",
    matches=_matches,
    opening="<tool_call>",
    closing="</tool_call>",
    before="\n",
    after="\n",
    next_run="\n",
    read=_read,
)
