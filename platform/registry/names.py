"""How adapters are named and referred to: `name`, `name@3`, `name@alias`.

Names are lower case, so no two differ by case alone; versions are numbers, so an alias is never all digits.
"""

import difflib
import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from .errors import InvalidName

LATEST = "latest"
"""The implicit alias: the newest version that is enabled."""
DEFAULT = "default"
"""The alias that says what the bare name means, where it is set."""
DEFAULT_TENANT = "default"
"""Whose things are meant where no tenant is named; its admins operate the server."""

MAX_LABEL = 100

NAME_PATTERN = r"[a-z0-9][a-z0-9._-]{0,62}"
NAME_RULE = "use 1 to 63 characters from a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
USER_RULE = "use 1 to 63 characters from a-z, 0-9, '.', '_', '+', '@' and '-', beginning with a letter or digit"
_NAME = re.compile(NAME_PATTERN)
_USER = re.compile(r"[a-z0-9][a-z0-9._+@-]{0,62}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,62}")


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed reference. `selector` is a version number, an alias, or None for the adapter itself."""

    name: str
    selector: int | str | None = None

    def __str__(self) -> str:
        return self.name if self.selector is None else f"{self.name}@{self.selector}"


def check_adapter_name(name: str) -> None:
    """Raise InvalidName unless `name` may name an adapter."""
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{_shown(name)} cannot name an adapter: {NAME_RULE}{_lower_case_hint(name)}.")


def check_tenant_name(name: str) -> None:
    """Raise InvalidName unless `name` may name a tenant."""
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{_shown(name)} cannot name a tenant: {NAME_RULE}{_lower_case_hint(name)}.")


def check_user_name(name: str) -> None:
    """Raise InvalidName unless `name` may name a user."""
    if not _USER.fullmatch(name):
        raise InvalidName(f"{_shown(name)} cannot name a user: {USER_RULE}{_lower_case_hint(name)}.")


def check_alias(alias: str) -> None:
    """Raise InvalidName unless `alias` may be set on an adapter."""
    if not _NAME.fullmatch(alias):
        raise InvalidName(f"{_shown(alias)} cannot be an alias: {NAME_RULE}{_lower_case_hint(alias)}.")
    if alias.isdigit():
        raise InvalidName(f"'{alias}' cannot be an alias: numbers are version numbers. Try 'v{alias}'.")
    if alias == LATEST:
        raise InvalidName(f"'{LATEST}' is reserved: it always means the newest enabled version. Choose another alias.")


def check_label(text: str) -> str:
    """The text itself if it can be shown and stored as a name for people; raises InvalidName."""
    if not is_label(text):
        raise InvalidName(f"{_shown(text)} is not a valid label: use 1 to {MAX_LABEL} printable characters.")
    return text


def is_label(text: str) -> bool:
    return 0 < len(text) <= MAX_LABEL and text.isprintable() and text == text.strip()


def parse_reference(text: str) -> Reference:
    """`name`, `name@3` or `name@alias`; raises InvalidName for anything that no adapter could be called."""
    name, at, selector = text.partition("@")
    check_adapter_name(name)
    if not at:
        return Reference(name)
    if _NUMBER.fullmatch(selector):
        return Reference(name, int(selector))
    if selector.isdigit() or not _NAME.fullmatch(selector):
        raise InvalidName(f"There is no version {_shown(selector)}: give a number such as 1, or an existing alias.")
    return Reference(name, selector)


def nearest_names(wanted: str, names: Iterable[str]) -> list[str]:
    """At most three existing names that look like `wanted`, best first."""
    wanted = wanted[:63].lower()
    # difflib alone takes 0.2 ms a name, and requests that fail must stay cheap.
    likely = heapq.nlargest(20, names, key=lambda name: _likeness(_pairs(wanted), _pairs(name)))
    return difflib.get_close_matches(wanted, likely, n=3, cutoff=0.5)


def _likeness(ours: frozenset[str], theirs: frozenset[str]) -> float:
    return len(ours & theirs) / (len(ours) + len(theirs))


@lru_cache(maxsize=8192)
def _pairs(name: str) -> frozenset[str]:
    padded = f" {name} "
    return frozenset(padded[start : start + 2] for start in range(len(padded) - 1))


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 80 else name[:77] + "...")


def _lower_case_hint(name: str) -> str:
    return f" (for example '{name.lower()}')" if _NAME.fullmatch(name.lower()) else ""
