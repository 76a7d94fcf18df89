"""without_chat_fields: what a chat has and an API over chats has not, refused where it would change the answer."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...http.errors import invalid
from ..fields import HARMLESS, NEUTRAL, is_among
from ..schemas import ChatRequest

DEFAULTS: Final = {
    field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(ChatRequest)
    if not field.required and field.name not in {*HARMLESS, *NEUTRAL}
}
"""Of the fields that no table of `check_fields` speaks of."""


def without_chat_fields(body: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """The body without those at their defaults. `known`: the fields that the API has itself. ApiError 400 names the
    first that it has not and that is no default."""
    others = {name: value for name, value in body.items() if name in DEFAULTS and name not in known}
    for name, value in others.items():
        if not is_among(value, (DEFAULTS[name],)):
            words = f"{name} belongs to /v1/chat/completions and would change the answer. Leave it out, or ask there."
            raise invalid(words, name, "unsupported")
    return {name: value for name, value in body.items() if name not in others}
