"""What the system page tells: health, the model, versions, and the settings in force."""

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from pydantic import ByteSize
from sqlalchemy import make_url

import loraplex

from ..kv_cache import dtype_words, tokens
from ..setting_secrets import MASK
from ..settings import Settings
from ..state import State
from ..units import duration_words, size_words, span_words
from .words import engine_words

PACKAGES: Final = (
    "torch",
    "transformers",
    "tokenizers",
    "numba",
    "triton",
    "fastapi",
    "starlette",
    "uvicorn",
    "sqlalchemy",
)
STALE_SECONDS: Final = 10.0
"""Age of the registry's snapshot from which the database counts as away."""
NOT_SET: Final = "not set"
UNITS: Final = {"_timeout": "s", "_seconds": "s", "_hours": "h"}
"""End of a setting's name -> unit of its value."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the health list."""

    name: str
    words: str
    tone: str


@dataclass(frozen=True, slots=True)
class SettingRow:
    name: str
    value: str
    description: str
    changed: bool
    """Whether it differs from the default."""


def health(state: State) -> list[Check]:
    words, tone = engine_words(state)
    return [Check("Engine", words, tone), *_engine_checks(state), _database(state), _disk(state)]


def model_facts(state: State) -> list[tuple[str, str]]:
    info = state.engine.info
    if info is None:
        return [("Base", state.settings.base_name)]
    return [
        ("Base", state.settings.base_name),
        ("Architecture", info.architecture),
        ("Context", f"{info.max_model_len:,} tokens"),
        ("Weights", f"{info.quantization or info.dtype}, {size_words(info.weight_bytes)}"),
        ("KV cache", f"{tokens(info):,} tokens in {dtype_words(info)}, {size_words(info.kv_cache_bytes)}"),
        *([("KV scales", info.kv_cache_scales)] if info.kv_cache_scales else []),
        ("Adapter memory", size_words(info.adapter_memory)),
        ("Compute", info.compute),
    ]


def device_facts(state: State) -> list[tuple[str, str]]:
    info = state.engine.info
    if info is None:
        return []
    return [
        ("Device", info.device),
        ("Arithmetic", info.arithmetic),
        ("Threads", str(info.num_threads)),
        ("Vocabulary", f"{info.vocab_size:,} tokens"),
        ("Load time", duration_words(info.load_seconds)),
        ("Host cache", size_words(info.adapter_host_memory) if info.adapter_host_memory else "off"),
        ("Adapters in memory", f"at most {info.max_loaded_adapters:,}"),
    ]


def versions() -> list[tuple[str, str]]:
    """Of what runs here. Read from metadata, so that nothing heavy is imported for it."""
    installed = [(name, _installed(name)) for name in PACKAGES]
    return [
        ("loraplex", loraplex.__version__),
        ("Python", platform.python_version()),
        ("System", f"{platform.system()} {platform.machine()}"),
        *((name, found) for name, found in installed if found),
    ]


def setting_rows(settings: Settings) -> list[SettingRow]:
    """By name, secrets masked."""
    fields = Settings.model_fields
    return [
        SettingRow(
            name=name,
            value=_value_words(_in_force(settings, name, value)) + _unit_words(name),
            description=fields[name].description or "",
            changed=value == MASK or getattr(settings, name) != fields[name].get_default(),
        )
        for name, value in sorted(settings.masked().items())
    ]


def free_disk(state: State) -> int:
    return shutil.disk_usage(state.settings.data_dir).free


def _engine_checks(state: State) -> list[Check]:
    status, restarts = state.engine.status, state.engine.restarts
    checks = [Check("Engine restarts", str(restarts), "warn" if restarts else "good")]
    if status is not None:
        broken = status.integrity_errors
        checks.append(Check("Heartbeat", f"{duration_words(state.engine.heartbeat_age())} ago", "good"))
        checks.append(Check("Memory accounting", f"{broken} errors" if broken else "OK", _tone(not broken)))
    return checks


def _database(state: State) -> Check:
    age, dialect = state.registry.snapshots.age, make_url(state.settings.database).get_backend_name()
    away = age > STALE_SECONDS
    return Check(
        "Database", f"{dialect}, unreachable for {span_words(age)}" if away else f"{dialect}, OK", _tone(not away)
    )


def _disk(state: State) -> Check:
    free, floor = free_disk(state), int(state.settings.min_free_bytes)
    tone = "bad" if free < floor else "warn" if free < 2 * floor else "good"
    rule = f", {size_words(floor)} kept free" if floor else ""
    return Check("Data folder disk", f"{size_words(free)} free{rule}", tone)


def _tone(good: bool) -> str:
    return "good" if good else "bad"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _in_force(settings: Settings, name: str, shown: object) -> object:
    """What is shown of it, but sizes as such: JSON knows only numbers."""
    value = getattr(settings, name)
    return value if isinstance(value, ByteSize) else shown


def _unit_words(name: str) -> str:
    return next((f" {unit}" for end, unit in UNITS.items() if name.endswith(end)), "")


def _value_words(value: object) -> str:
    if isinstance(value, ByteSize):
        return size_words(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "" or value == []:
        return NOT_SET
    if isinstance(value, float):
        return f"{value:,.10g}"
    return ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
