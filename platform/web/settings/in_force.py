"""What each setting comes to, where it is from, and whether a restart would change it.

One answer for `config`, `doctor`, the API and the dashboard.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from pydantic import ByteSize, ValidationError

from loraplex.engine.protocol import EngineInfo

from ..units import size_words
from .secrets import mask_url
from .settings import Settings
from .sources import COMPUTED, Source
from .types import kinds_of
from .words import error_lines

LEFT_TO_THE_SERVER: Final = (None, "", "auto")
"""What a setting is given as where the server finds its value."""
FOUND_BY_ENGINE: Final[Mapping[str, Callable[[EngineInfo], Any]]] = {
    "device": lambda info: info.device.partition(":")[0],
    "dtype": lambda info: info.dtype,
    "max_model_len": lambda info: info.max_model_len,
    "max_num_batched_tokens": lambda info: info.max_num_batched_tokens,
    "kv_cache_memory": lambda info: info.kv_cache_bytes + info.state_bytes,
    "kv_cache_dtype": lambda info: info.kv_cache_dtype,
    "num_kv_blocks": lambda info: info.num_blocks + 1,  # with the one that pads
    "num_state_slots": lambda info: info.num_states and info.num_states + 1,
    "adapter_memory": lambda info: info.adapter_memory,
    "num_threads": lambda info: info.num_threads,
}
NOT_SET: Final = "not set"
AT_THE_START: Final = "found at the start"
UNITS: Final = {"_timeout": "s", "_seconds": "s", "_hours": "h"}
"""End of a setting's name -> unit of its value."""


class SettingInForce(msgspec.Struct, frozen=True):
    """`value` is in force; `given` is what flag, environment, file or default say, and `source` which of them;
    `computed`: the server found it. `needs_restart`: by now something else is given, which is `next`."""

    name: str
    value: Any
    given: Any
    source: Source
    needs_restart: bool = False
    next: Any = None


def settings_in_force(settings: Settings, info: EngineInfo | None) -> list[SettingInForce]:
    """By name, secrets masked. `info`: of the engine, which computes some; None: it has not started."""
    given, computed, after = settings.masked(), _computed(settings, info), _after_restart(settings)
    rows = []
    for name in sorted(given):
        is_open = getattr(settings, name) in LEFT_TO_THE_SERVER
        is_computed = name in computed and (is_open or computed[name] is not None)
        value = computed[name] if is_computed else given[name]
        source = COMPUTED if is_open and is_computed else settings.source_of(name)
        changes = after is not None and getattr(after, name) != getattr(settings, name)
        coming = after.masked()[name] if after is not None and changes else None
        rows.append(SettingInForce(name, value, given[name], source, changes, coming))
    return rows


def obstacle_to_restart(settings: Settings) -> str:
    """Why the server would not start with what is given now; empty: it would."""
    try:
        settings.read_again()
    except ValidationError as error:
        return " ".join(error_lines(error))
    except ValueError as error:
        return str(error)
    return ""


def words_of(row: SettingInForce) -> str:
    """Its value in force."""
    return AT_THE_START if row.source == COMPUTED and row.value is None else value_words(row.name, row.value)


def value_words(name: str, value: object) -> str:
    """With its unit."""
    unit = next((f" {unit}" for end, unit in UNITS.items() if name.endswith(end)), "")
    if isinstance(value, int) and ByteSize in kinds_of(Settings.model_fields[name].annotation):
        return size_words(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "" or value == []:
        return NOT_SET
    if isinstance(value, float):
        return f"{value:,.10g}{unit}"
    return ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _computed(settings: Settings, info: EngineInfo | None) -> dict[str, Any]:
    of_engine = {name: None if info is None else found(info) for name, found in FOUND_BY_ENGINE.items()}
    return {**of_engine, "served_name": settings.base_name, "database_url": mask_url(settings.database)}


def _after_restart(settings: Settings) -> Settings | None:
    """None: the server would not start."""
    try:
        return settings.read_again()
    except ValueError:
        return None
