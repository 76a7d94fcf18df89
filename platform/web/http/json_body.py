"""JSON bodies of strangers: read within limits, parsed strictly, converted to a msgspec struct or refused in words."""

import asyncio
import json
import math
import re
import sys
from typing import Any, NoReturn, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from .errors import ApiError, invalid

MAX_DEPTH = 64
EXACT = 2**53
"""Below, a float that has no fraction is the integer that was meant."""
T = TypeVar("T")


class DoubledName(ValueError):
    """A name stands twice in one object; the text says which."""


async def read_json(request: Request, timeout: float, *, nulls: bool = False) -> dict[str, Any]:
    """The body as a JSON object, with null members only where null does not mean absent. Raises ApiError."""
    _check_content_type(request.headers.get("content-type"))
    _check_content_encoding(request.headers.get("content-encoding"))
    return parse_object(await read_bytes(request, timeout), nulls=nulls)


async def read_bytes(request: Request, timeout: float) -> bytes:
    """The raw body; the body limit has bounded it. 408 when it takes longer than `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await request.body()
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {timeout:g} seconds.", code="request_timeout") from None
    except ClientDisconnect:
        raise invalid("The connection closed before the body was complete.") from None


def parse_object(raw: bytes, *, nulls: bool = False) -> dict[str, Any]:
    """Strict JSON: no duplicate names, no NaN or overflow, no lone surrogates, at most 64 levels."""
    if not raw.strip():
        raise invalid("The body is empty; send a JSON object.")
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=unique_members, parse_constant=_refuse_constant, parse_float=_number
        )
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8: byte {error.start} cannot be decoded.") from None
    except RecursionError:
        raise invalid(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
    except json.JSONDecodeError as error:
        raise invalid(f"The body is not valid JSON: {error.msg} at character {error.pos}.") from None
    except DoubledName as error:
        raise _not_json(str(error)) from None
    except ValueError:
        digits = sys.get_int_max_str_digits()
        raise invalid(f"The body has an integer of more than {digits} digits, which is too large.") from None
    if not isinstance(value, dict):
        raise invalid(f"The body must be a JSON object, got {_json_type(value)}.")
    _check_depth(value, raw)
    _check_surrogates(value, raw)
    return {name: member for name, member in value.items() if nulls or member is not None}


def convert(value: object, target: type[T]) -> T:
    """`value` as a `target` struct; a mismatch is a 400 whose `param` is the path of the field."""
    try:
        return msgspec.convert(value, target)
    except msgspec.ValidationError as error:
        message, path = _split_path(str(error))
        param = ".".join(part for part in (path, _missing_field(message)) if part)
        if message.startswith("Object contains unknown field"):
            message = "unknown field. Leave it out"
        raise invalid(f"{param}: {message}." if param else f"{message}.", param or None) from None


def _check_content_type(content_type: str | None) -> None:
    media_type = (content_type or "application/json").partition(";")[0].strip().lower()
    # curl -d sends the form type when no header is given; its body is what was meant to be JSON.
    accepted = ("application/json", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream")
    if media_type not in accepted and not media_type.endswith("+json"):
        message = (
            f"The content type {media_type} is not accepted; send JSON with the header content-type: application/json."
        )
        raise ApiError(415, message, param="content-type", code="unsupported_media_type")


def _check_content_encoding(content_encoding: str | None) -> None:
    encoding = (content_encoding or "identity").strip().lower()
    if encoding != "identity":
        message = (
            f"The content encoding {encoding} is not accepted; send the body uncompressed, without content-encoding."
        )
        raise ApiError(415, message, param="content-encoding", code="unsupported_media_type")


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object as `json.loads` hands it to an object_pairs_hook. Raises DoubledName."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DoubledName(f"the name {twice!a} appears twice in one object")
    return members


def _refuse_constant(text: str) -> NoReturn:
    raise _not_json(f"{text} is not a JSON number")


def _number(text: str) -> float:
    """An integer when the value is one: some clients write 1 as 1.0."""
    value = float(text)
    if not math.isfinite(value):
        raise _not_json(f"the number {text[:32]} is too large")
    return int(value) if value.is_integer() and abs(value) < EXACT else value


def _not_json(reason: str) -> ApiError:
    return invalid(f"The body is not valid JSON: {reason}.")


def _check_depth(value: object, raw: bytes) -> None:
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise invalid(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _deeper_than(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    members = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper_than(member, levels - 1) for member in members)


def _check_surrogates(value: object, raw: bytes) -> None:
    if b"\\u" not in raw:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise invalid("The body has an unpaired surrogate (\\ud800 to \\udfff), which is not text.") from None


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _split_path(message: str) -> tuple[str, str]:
    """msgspec's "Expected `int`, got `str` - at `$.a[0].b`" as the words and "a[0].b"."""
    words, separator, path = message.partition(" - at `")
    return words, path.removesuffix("`").removeprefix("$").removeprefix(".") if separator else ""


def _missing_field(message: str) -> str | None:
    """The field in "Object missing required field `model`", or one that is not known."""
    found = re.search(r"field `([^`]+)`", message)
    return found.group(1) if found else None
