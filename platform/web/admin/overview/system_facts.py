"""What the system page tells: health, the model, versions, and the settings in force."""

import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sqlalchemy import make_url

import loraplex
from loraplex.engine.protocol import EngineInfo

from ...adapters.engine_door import EngineDoor
from ...observability.kv_cache import dtype_words, tokens
from ...settings.in_force import settings_in_force, value_words, words_of
from ...settings.settings import Settings
from ...settings.sources import COMPUTED, CONFIG_FILE, DEFAULT
from ...state import State
from ...units import duration_words, size_words
from ..words import engine_words

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
SOURCES: Final = {
    "flag": "flag",
    "environment": "environment",
    "file": CONFIG_FILE,
    "default": "default",
    "computed": "computed",
}


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
    source: str
    tone: str
    """Of the source: whether somebody has set it."""
    next: str | None
    """What it is after a restart, where that is something else."""
    description: str


def health(state: State) -> list[Check]:
    words, tone = engine_words(state)
    return [Check("Engine", words, tone), *_engine_checks(state.engine), _database(state), _disk(state.settings)]


def model_facts(state: State) -> list[tuple[str, str]]:
    info = state.engine.info
    if info is None:
        return [("Base", state.settings.base_name)]
    return [
        ("Base", state.settings.base_name),
        ("Architecture", info.architecture),
        ("Context", f"{info.max_model_len:,} tokens"),
        ("Weights", f"{info.quantization or info.dtype}, {size_words(info.weight_bytes)}"),
        *([("KV cache", _cache_words(info))] if info.num_blocks else []),
        *([("Recurrent states", f"{info.num_states:,} in {size_words(info.state_bytes)}")] if info.num_states else []),
        *([("KV scales", info.kv_cache_scales)] if info.kv_cache_scales else []),
        ("Adapter memory", size_words(info.adapter_memory)),
        ("Compute", info.compute),
    ]


def _cache_words(info: EngineInfo) -> str:
    return f"{tokens(info):,} tokens in {dtype_words(info)}, {size_words(info.kv_cache_bytes)}"


def device_facts(engine: EngineDoor) -> list[tuple[str, str]]:
    info = engine.info
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


def setting_rows(state: State) -> list[SettingRow]:
    """By name, secrets masked."""
    return [
        SettingRow(
            name=row.name,
            value=words_of(row),
            source=SOURCES[row.source],
            tone="" if row.source in (DEFAULT, COMPUTED) else "good",
            next=value_words(row.name, row.next) if row.needs_restart else None,
            description=Settings.model_fields[row.name].description or "",
        )
        for row in settings_in_force(state.settings, state.engine.info)
    ]


def free_disk(settings: Settings) -> int:
    return shutil.disk_usage(settings.data_dir).free


def _engine_checks(engine: EngineDoor) -> list[Check]:
    status, restarts = engine.status, engine.restarts
    checks = [Check("Engine restarts", str(restarts), "warn" if restarts else "good")]
    if status is not None:
        broken = status.integrity_errors
        checks.append(Check("Heartbeat", f"{duration_words(engine.heartbeat_age())} ago", "good"))
        checks.append(Check("Memory accounting", f"{broken} errors" if broken else "OK", _tone(not broken)))
    return checks


def _database(state: State) -> Check:
    obstacle, dialect = state.database_watch.obstacle(), make_url(state.settings.database).get_backend_name()
    return Check("Database", f"{dialect}: {obstacle}" if obstacle else f"{dialect}, OK", _tone(not obstacle))


def _disk(settings: Settings) -> Check:
    free, floor = free_disk(settings), int(settings.min_free_bytes)
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
