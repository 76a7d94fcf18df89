"""What a setting may be, beside plain numbers, words and switches."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field
from pydantic_settings import NoDecode

Fraction = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]


HUMAN: Final = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")
UNITS: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
BINARY: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _plain_int(value: object) -> object:
    """Refuse true and 1.5 where pydantic would take them as a number of bytes, and say of -1 what is wrong with it."""
    if isinstance(value, bool | float):
        raise ValueError(f"give a whole number of bytes or a size such as 512MiB, got {value}")
    if str(value).lstrip().startswith("-"):
        raise ValueError(f"{value} bytes is negative; give 0 or more, such as 512MiB")
    return value


def human_number(value: object) -> object:
    """As vLLM reads it: 8k is 8000, 8K is 8192, 1.5m is 1500000. What is no such text stays."""
    found = HUMAN.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return value
    number, unit = found.groups()
    if unit.isupper() and "." in number:
        raise ValueError(f"{value}: a binary unit takes a whole number; write {number}{unit.lower()}, or a number")
    return round(float(number) * UNITS[unit]) if unit.islower() else int(number) * BINARY[unit]


def _split_folders(value: object) -> object:
    """A list, or one text with the folders separated as in PATH."""
    return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value


def _split_names(value: object) -> object:
    """A list, or one text with commas."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _check_folders(folders: tuple[Path, ...]) -> tuple[Path, ...]:
    for folder in folders:
        if not folder.is_absolute():
            raise ValueError(f"{folder} is not an absolute path; give the full path, starting with /")
        if folder == Path("/"):
            raise ValueError("/ is the whole machine; name the folder that contains the adapters")
    return folders


def _split_origins(value: object) -> object:
    """Also a list in JSON, as vLLM's flag has it."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError(f"{value} is not a list in JSON; give origins with commas between them") from None
    return _split_names(value)


def _check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        if origin != "*" and re.fullmatch(r"https?://[^/?#@\s*]+", origin) is None:
            raise ValueError(f"{origin} is not an origin; give scheme and host such as https://chat.example.com, or *")
    return origins


def _check_root_path(path: str) -> str:
    if re.fullmatch(r"(/[\w.~-]+)*", path) is None:
        raise ValueError(
            "it must start with a single / and not end with /; give a path such as /loraplex, or leave it empty"
        )
    return path


def kinds_of(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from kinds_of(part)


Tokens = Annotated[int, BeforeValidator(human_number), Field(ge=1)]
"""Also as 8k or 8K."""
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_origins), AfterValidator(_check_origins)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_names)]
Bytes = Annotated[ByteSize, BeforeValidator(_plain_int)]
Folders = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_split_folders), AfterValidator(_check_folders)]
WholePath = Annotated[Path, AfterValidator(Path.absolute)]
"""Also where it was given from the folder that one was in."""
RootPath = Annotated[str, AfterValidator(_check_root_path)]
