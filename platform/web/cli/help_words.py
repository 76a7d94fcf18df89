"""What the help says about a setting: what to write, and what it is when nothing is written."""

from typing import Any, Final, Literal, get_args, get_origin

from pydantic import ByteSize

from ..settings.settings import DEMO_MODEL
from ..settings.types import kinds_of

NAMED: Final = {
    "host": "ADDRESS",
    "model": "FOLDER|HUB-ID",
    "data_dir": "FOLDER",
    "adapter_folders": "FOLDER:FOLDER",
    "certificate_reference": "FOLDER",
    "database_url": "URL",
    "root_path": "PATH",
    "served_name": "NAME",
    "also_served_as": "NAME,NAME",
    "lora_modules": "NAME=FOLDER ...",
    "chat_template": "FILE|TEMPLATE",
}
UNITS: Final = {"_timeout": "SECONDS", "_seconds": "SECONDS", "_hours": "HOURS", "_file": "FILE"}
BINARY: Final = (("GiB", 30), ("MiB", 20), ("KiB", 10))


def placeholder(name: str, annotation: Any) -> str:
    """Stands after the flag: the words to choose from, or what kind of value to write."""
    unit = next((word for ending, word in UNITS.items() if name.endswith(ending)), None)
    kinds = list(kinds_of(annotation))
    if ByteSize in kinds:
        return "BYTES (4GiB)"
    if Literal in kinds:
        return "|".join(_choices(annotation))
    return NAMED.get(name) or unit or ("NUMBER" if {int, float} & set(kinds) else "TEXT")


def format_default(default: object) -> str | None:
    """None: the description says what happens when nothing is given."""
    if default in (None, "", ()):
        return None
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, ByteSize):
        return _binary(default)
    if default == str(DEMO_MODEL):
        return "the demo model"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _binary(size: int) -> str:
    unit, shift = next(((unit, shift) for unit, shift in BINARY if size % (1 << shift) == 0), ("", 0))
    return f"{size >> shift}{unit}"


def _choices(annotation: Any) -> tuple[str, ...]:
    assert get_origin(annotation) is Literal
    return get_args(annotation)
