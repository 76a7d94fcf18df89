"""parse_json: JSON from strangers. What two parsers could read in two ways, or what costs much to read, is refused."""

import json
import math
import re
from typing import Any, Final, NoReturn

from .foreign_formats import name_format

LONGEST_NUMBER: Final = 40
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""Also takes a string that never ends, so that no byte is looked at twice."""
_OPENING: Final = b"[{"
_BRACKETS: Final = b"[]{}"
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(_BRACKETS))


def parse_json(data: bytes, max_depth: int) -> dict[str, Any]:
    """The JSON object in `data`. ValueError names what is wrong: format, encoding, syntax, depth, keys, numbers."""
    foreign = name_format(data)
    if foreign is not None:
        raise ValueError(f"it is {foreign}, not JSON")
    _check_depth(data, max_depth)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_short_int,
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg}, line {error.lineno} column {error.colno})") from None
    if not isinstance(value, dict):
        raise ValueError("its top level is not a JSON object")
    if b"\\u" in data:  # nothing else makes such characters
        _check_text(value)
    return value


def _check_depth(data: bytes, max_depth: int) -> None:
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _ALL_BUT_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > max_depth:
            raise ValueError(f"it is nested more than {max_depth} levels deep")


def _check_text(value: dict[str, Any]) -> None:
    """Databases and sockets cannot store lone surrogates and NUL."""
    text = json.dumps(value, ensure_ascii=False)
    if "\\u0000" in text:
        raise ValueError("a text in it holds a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a text in it holds half of a surrogate pair") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {ascii(twice)[:80]} appears twice in one object")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text) if len(text) <= LONGEST_NUMBER else math.inf
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:LONGEST_NUMBER]} is too large or too long")
    return value


def _short_int(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"the number {text[:LONGEST_NUMBER]}... has {len(text)} digits")
    return int(text)
