"""HTML forms: what was typed, what of it is wrong, each in words beside its field."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from msgspec import structs

from loraplex.registry.access.quotas import LARGEST, OPEN, Quota

from ..endpoints.authentication import form_fields
from ..http.errors import ApiError
from ..http.refusals import as_api_error

DIGITS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
LIMITS: Final = {
    "requests_per_minute": "Requests per minute",
    "tokens_per_minute": "Tokens per minute",
    "max_concurrent": "Concurrent requests",
    "tokens_per_day": "Tokens per day",
}
"""Fields of Quota, as people call them."""
NO_LIMIT: Final = "Enter a whole number of at least 1, or leave blank for no limit."


@dataclass(slots=True)
class Form:
    """`errors` by field; one that is about no field is under the empty name. `status` is what to answer with then."""

    values: Mapping[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    status: int = 400

    @property
    def is_good(self) -> bool:
        return not self.errors

    def text(self, name: str) -> str:
        return self.values.get(name, "").strip()

    def limit(self, name: str) -> int | None:
        """A whole number, or None where nothing was typed."""
        text = self.text(name)
        if not text:
            return None
        if not DIGITS.fullmatch(text) or not 1 <= int(text) <= LARGEST:
            self.errors[name] = NO_LIMIT
            return None
        return int(text)

    def quota(self) -> Quota:
        return Quota(**{name: self.limit(name) for name in LIMITS})

    @contextmanager
    def refusals(self, **fields: str) -> Iterator[None]:
        """What the registry refuses, beside the field that `fields` has for its code. Raises ApiError for the rest."""
        try:
            with as_api_error():
                yield
        except ApiError as error:
            if error.code not in fields:
                raise
            self.errors[fields[str(error.code)]], self.status = error.message, error.status


async def read_form(request: Request) -> Form:
    return Form(await form_fields(request))


def quota_values(quota: Quota = OPEN) -> dict[str, str]:
    """As the fields of a form show it."""
    return {name: "" if limit is None else str(limit) for name, limit in structs.asdict(quota).items()}


def quota_words(quota: Quota) -> list[str]:
    """Each limit there is; tokens of a day have a bar of their own."""
    units = {
        "requests_per_minute": "requests/min",
        "tokens_per_minute": "tokens/min",
        "max_concurrent": "concurrent",
    }
    limits = structs.asdict(quota)
    return [f"{limits[name]:,} {unit}" for name, unit in units.items() if limits[name] is not None]
