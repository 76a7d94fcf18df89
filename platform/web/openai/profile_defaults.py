"""What a serving profile means for one request: defaults of the fields it left out, and a bound of its answer.

System prompt and chat template are the text_processor's (`TextProcessorCache.with_profile`).
"""

from collections.abc import Collection
from typing import Any, Final, TypeVar

import msgspec

from loraplex.registry.adapters.profiles import ServingProfile

from ..http.errors import invalid
from .response_format import JsonSchema, JsonSchemaFormat, asks_for_form

SAMPLING: Final = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "seed"),
)
DEFAULTS: Final = (*SAMPLING, "stop")
"""Fields of a profile that stand for the fields of this name in a request."""
Fields = TypeVar("Fields", bound=msgspec.Struct)


def filled(fields: Fields, sent: Collection[str], profile: ServingProfile | None) -> Fields:
    """`fields` with the profile's defaults for what is not among `sent`, the members of the body."""
    given = {} if profile is None else profile.given()
    defaults: dict[str, Any] = {name: given[name] for name in DEFAULTS if name in given and name not in sent}
    if "json_schema" in given and not asks_for_form(sent):
        defaults["response_format"] = JsonSchemaFormat(JsonSchema(name="profile", schema=given["json_schema"]))
    return msgspec.structs.replace(fields, **defaults) if defaults else fields


def output_tokens(
    profile: ServingProfile | None, asked: int | None, default: int | None, room: int, field: str
) -> int | None:
    """Tokens that the answer may have; None: as many as there is room for.

    `asked`: by the request, in `field`; ApiError above the profile's bound. `default`: the endpoint's, where the
    profile has none; either is shortened to the `room` beside the prompt.
    """
    limit = None if profile is None else profile.max_tokens_limit
    if asked is not None:
        if limit is not None and asked > limit:
            message = f"{field} is {asked}, but the serving profile of this adapter allows at most {limit}."
            raise invalid(message, field, "above_profile_limit")
        return asked
    if profile is not None and profile.max_tokens is not None:
        default = profile.max_tokens
    bounds = [bound for bound in (default, limit) if bound is not None]
    return max(1, min(*bounds, room)) if bounds else None
