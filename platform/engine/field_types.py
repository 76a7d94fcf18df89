"""What fields that users fill in may hold: a value of another type is refused in words, as the object is made."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from operator import attrgetter
from types import NoneType
from typing import Any, Final

import msgspec

MOST_SHOWN: Final = 40
"""Characters of a wrong value that the message shows."""


class ParameterError(ValueError):
    """A field holds what it cannot. `parameter` is its name."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class Unfit(Exception):
    """A value, or one inside it, has a type that is not allowed."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


@dataclass(frozen=True, slots=True)
class Kind:
    """`read` returns the value as it is kept, or raises Unfit. Values whose type is in `plain` are kept as they are."""

    allowed: str
    read: Callable[[Any], Any]
    plain: frozenset[type] = frozenset()

    def or_none(self) -> "Kind":
        def read(value: Any) -> Any:
            return None if value is None else self.read(value)

        return Kind(f"{self.allowed} or None", read, self.plain | {NoneType})


class Fields:
    """The fields of a struct, each with its kind. Every request is checked, also as the engine decodes it."""

    def __init__(self, kinds: Mapping[str, Kind], prefix: str = "") -> None:
        """`prefix` goes before the field's name in messages."""
        self._kinds = tuple(kinds.items())
        self._values = attrgetter(*kinds)
        self._prefix = prefix

    def check(self, owner: msgspec.Struct) -> None:
        """Keep each field as its kind reads it. ParameterError says what a field holds and what is allowed."""
        for (name, kind), value in zip(self._kinds, self._values(owner), strict=True):
            if type(value) in kind.plain:
                continue
            try:
                kept = kind.read(value)
            except Unfit as unfit:
                shown = _shown(unfit.value, value)
                path = f"{self._prefix}{name}"
                raise ParameterError(path, f"{path} must be {kind.allowed}, got {shown}") from None
            if kept is not value:
                setattr(owner, name, kept)


def _shown(part: Any, whole: Any) -> str:
    text = repr(part)
    text = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
    return f"{text} ({type(part).__name__}){'' if part is whole else ' in it'}"


def _read_integer(value: Any) -> int:
    """NumPy's integers too, which are no `int`."""
    if type(value) is int:
        return value
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    raise Unfit(value)


def _read_number(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Unfit(value)
    return number


def _read_flag(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise Unfit(value)


def _read_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Unfit(value)


def _read_list(read_item: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def read(value: Any) -> list[Any]:
        if type(value) is list and not value:
            return value
        if not isinstance(value, list | tuple):
            raise Unfit(value)
        return [read_item(item) for item in value]

    return read


def _read_biases(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise Unfit(value)
    return {_read_integer(token_id): _read_number(bias) for token_id, bias in value.items()}


def _read_stop(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else TEXTS.read(() if value is None else value)


def _read_stop_token_ids(value: Any) -> list[int]:
    token_ids: list[int] = TOKEN_IDS.read(() if value is None else value)
    return token_ids


INTEGER: Final = Kind("an integer", _read_integer, frozenset({int}))
NUMBER: Final = Kind("a finite number", _read_number)
FLAG: Final = Kind("True or False", _read_flag, frozenset({bool}))
TEXT: Final = Kind("a string", _read_text, frozenset({str}))
TEXTS: Final = Kind("a list of strings", _read_list(_read_text))
TOKEN_IDS: Final = Kind("a list of token ids", _read_list(_read_integer))
BIASES: Final = Kind("a dict of token ids and finite numbers", _read_biases)
STOP: Final = Kind("a string, a list of strings or None", _read_stop)
"""Kept as a list."""
STOP_TOKEN_IDS: Final = Kind("a list of token ids or None", _read_stop_token_ids)
"""Kept as a list."""
