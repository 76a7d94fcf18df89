"""Doctor's checks of what a server needs around the engine: model files, database, data folder, dashboard, port."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

import httpx
import msgspec

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.folder import resolve_model_folder
from loraplex.engine.protocol import EngineInfo
from loraplex.engine.startup.weights_cache import kept_entries
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.database.database import parse_url
from loraplex.registry.database.migrate import current, head, is_known

from ...app import STATIC
from ...observability.engine_memory import memory_words
from ...settings.running_server import RunningServer
from ...settings.secrets import mask_url
from ...settings.settings import Settings
from ...units import size_words
from ..admin_api import api_of
from ..port import listen

VENDOR_FILES = ("vendor/htmx.min.js", "vendor/hashes/sha2.js")


@dataclass(frozen=True, slots=True)
class Check:
    level: str
    """ok, warn or fail."""
    what: str
    remedy: str = ""


def check_model(settings: Settings) -> Check:
    folder = resolve_model_folder(settings.model)
    model, files = ModelConfig.from_folder(folder), sorted(folder.glob("*.safetensors"))
    Tokenizer(folder)
    unreadable = [file.name for file in files if not os.access(file, os.R_OK)]
    if unreadable or not files:
        what = f"model: {folder} has {'unreadable' if unreadable else 'no'} weights {', '.join(unreadable)}".rstrip()
        return Check("fail", what, "Weights are *.safetensors files that this user may read; give such a folder.")
    size = sum(file.stat().st_size for file in files)
    return Check("ok", f"model at {folder}: {model.architecture}, {size_words(size)} in {len(files)} file(s)")


def check_memory_of(running: RunningServer) -> Check:
    """What the server has reserved, in the words of its start. The rest of the machine's memory is no matter then."""
    info = api_of(running).ask("GET", "/engine")["info"]
    if info is None:
        return Check("warn", f"memory: the engine of the server at {running.url} has not started yet")
    return Check("ok", f"memory of the running server: {memory_words(msgspec.convert(info, EngineInfo))}")


def check_database(settings: Settings) -> Check:
    url = settings.database
    where, parsed = mask_url(url), parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).exists():
        return Check("ok", f"database {where} will be created at the first start")
    revision = current(url)
    if revision is None:
        return Check("ok", f"database {where} is reachable and empty; the first start creates its tables")
    if revision == head():
        return Check("ok", f"database {where} is reachable, its schema is current ({revision})")
    if is_known(revision):
        remedy = "The next start migrates it, or run: loraplex db upgrade"
        return Check("warn", f"database {where} has an older schema ({revision}, the newest is {head()})", remedy)
    remedy = "A newer loraplex wrote it: install that version, or restore a backup."
    return Check("fail", f"database {where} has an unknown schema ({revision})", remedy)


def check_disk(settings: Settings) -> Check:
    folder = settings.data_dir
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free, floor = disk_usage(existing).free, int(settings.min_free_bytes)
    what = f"data folder {folder}, {size_words(free)} free"
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        remedy = f"{existing} must be a folder that this user can write to. Or set --data-dir to another one."
        return Check("fail", f"{what}, cannot be written: {error.strerror}", remedy)
    if free < floor:
        remedy = f"Uploads need {size_words(floor)} left afterwards (min_free_bytes). Free up disk space."
        return Check("warn", what, remedy)
    return Check("ok", f"{what}, writable")


def check_weights_cache(settings: Settings) -> Check:
    folder, limit = settings.weights_folder, int(settings.weights_cache_bytes)
    if not limit:
        what = "weights cache: off (weights_cache_bytes is 0), each start packs the weights again"
        if settings.quantization == "awq":
            return Check("fail", what, "awq quantization needs it: set weights_cache_bytes above 0.")
        return Check("ok", what)
    if not folder.exists():
        return Check(
            "ok", f"weights cache {folder} will be created at the first start, for at most {size_words(limit)}"
        )
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        remedy = "Make it a folder that this user can write to, or turn the cache off with --weights-cache-bytes 0."
        return Check("fail", f"weights cache {folder} cannot be written", remedy)
    kept = kept_entries(folder)
    return Check(
        "ok", f"weights cache {folder}: {len(kept)} kept, {size_words(sum(kept.values()))} of {size_words(limit)}"
    )


def check_static(static: Path = STATIC) -> Check:
    missing = [name for name in VENDOR_FILES if not (static / name).is_file()]
    if missing:
        remedy = (
            "Install them with: make serve (or python platform/web/frontend/install.py). The API works without them."
        )
        return Check("fail", f"dashboard: its libraries are missing in {static} ({', '.join(missing)})", remedy)
    return Check("ok", "dashboard: its libraries are installed")


def check_port(settings: Settings) -> Check:
    where = f"port {settings.port} on {settings.host}"
    try:
        listen(settings.host, settings.port).close()
    except ValueError:
        version = _serving(settings)
        if version is None:
            raise
        return Check("ok", f"{where}: loraplex {version} is serving there")
    return Check("ok", f"{where} is free")


def _serving(settings: Settings) -> str | None:
    """The version of a loraplex that answers there."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    try:
        answer = httpx.get(f"http://{host}:{settings.port}/version", timeout=2, trust_env=False)
        return str(answer.json()["version"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
