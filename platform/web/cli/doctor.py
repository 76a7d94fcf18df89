"""`loraplex doctor`: is this machine fit to serve? One line for each check, with the remedy where it is not."""

import importlib.util
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from loraplex.engine.model.folder import resolve_model_folder

from ..settings import Settings, mask_url
from .port import listen

MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
LEAST_DISK = 2 << 30


@dataclass(frozen=True, slots=True)
class Check:
    level: str
    """ok, warn or fail."""
    what: str
    remedy: str = ""


def doctor() -> None:
    """Check Python, torch, the compute path, memory, disk, database, model and port."""
    console = Console(highlight=False)
    settings = Settings()
    worst = "ok"
    for check in _checks(settings):
        console.print(f"{MARKS[check.level]}  {check.what}", soft_wrap=True)
        if check.remedy:
            console.print(f"      [dim]{check.remedy}[/]", soft_wrap=True)
        worst = "fail" if check.level == "fail" else worst
    if worst == "fail":
        raise typer.Exit(1)


def _checks(settings: Settings) -> Iterator[Check]:
    yield Check("ok", f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}")
    yield from _attempt(_torch)
    yield from _attempt(lambda: _compute(settings))
    yield _triton()
    yield _disk(settings.data_dir)
    yield from _attempt(lambda: _database(settings))
    yield from _attempt(lambda: Check("ok", f"model at {resolve_model_folder(settings.model)}"))
    yield from _attempt(lambda: _port(settings))


def _attempt(check: Callable[[], Check]) -> Iterator[Check]:
    try:
        yield check()
    except Exception as error:
        yield Check("fail", f"{error}")


def _torch() -> Check:
    import torch

    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 1e9
    return Check("ok", f"torch {torch.__version__}, {cuda}, {memory:.1f} GB of memory free")


def _compute(settings: Settings) -> Check:
    from loraplex.engine.device import choose_device
    from loraplex.engine.model.config import ModelConfig

    folder = resolve_model_folder(settings.model)
    device = choose_device(settings.engine_config(folder), ModelConfig.from_folder(folder))
    return Check("ok", f"compute: {device.compute}")


def _triton() -> Check:
    if importlib.util.find_spec("triton") is not None:
        return Check("ok", "triton is installed")
    return Check("ok", "triton is not installed: not needed without a GPU (pip install 'loraplex[gpu]')")


def _disk(folder: Path) -> Check:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    what = f"data folder {folder}, {free / 1e9:.1f} GB free"
    if not os.access(existing, os.W_OK):
        return Check("fail", what, f"{existing} cannot be written by this user. Set --data-dir to another folder.")
    return Check("ok" if free > LEAST_DISK else "warn", what, "" if free > LEAST_DISK else "Adapters need room here.")


def _database(settings: Settings) -> Check:
    from loraplex.registry.migrate import is_current

    where = mask_url(settings.database)
    if settings.database.startswith("sqlite") and not (settings.data_dir / "loraplex.db").exists():
        return Check("ok", f"database {where} will be made at the first start")
    if is_current(settings.database):
        return Check("ok", f"database {where} is reachable and current")
    return Check(
        "warn", f"database {where} has an older schema", "The next start migrates it; so does: loraplex db upgrade"
    )


def _port(settings: Settings) -> Check:
    listen(settings.host, settings.port).close()
    return Check("ok", f"port {settings.port} on {settings.host} is free")
