"""`loraplex doctor`: is this machine fit to serve? One line for each check, with what to do where it is not."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

import typer
from rich.console import Console

from loraplex.engine.device.threads import prepare_environment

from ...settings.settings import Settings
from ..output import Json, print_json
from ..server_here import answering_server
from ..settings_here import settings_here
from .machine_checks import check_compute, check_kernel_cache, check_memory, check_python, check_torch, check_triton
from .service_checks import (
    Check,
    check_database,
    check_disk,
    check_memory_of,
    check_model,
    check_port,
    check_static,
    check_weights_cache,
)

MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


def doctor(as_json: Json = False) -> None:
    """Check the machine and the settings: compute path, memory, model, database, data folder, dashboard, port.

    The exit code is 1 when anything fails.
    """
    prepare_environment()
    checks, settings, running = [], settings_here(), answering_server()
    memory = partial(check_memory, settings) if running is None else partial(check_memory_of, running)
    for check in _checks(settings, memory):
        checks.append(check)
        if not as_json:
            _tell(check)
    if as_json:
        print_json([asdict(check) for check in checks])
    if any(check.level == "fail" for check in checks):
        raise typer.Exit(1)


def _tell(check: Check) -> None:
    console = Console(highlight=False)
    console.print(f"{MARKS[check.level]}  ", end="")
    console.print(check.what, soft_wrap=True, markup=False)
    if check.remedy:
        console.print(f"      {check.remedy}", soft_wrap=True, markup=False, style="dim")


def _checks(settings: Settings, memory: Callable[[], Check]) -> Iterator[Check]:
    yield check_python()
    yield from _attempt("torch", check_torch, "Install it first: pip install torch==2.13.0")
    yield from _attempt("model", lambda: check_model(settings), "Name a model with --model.")
    yield from _attempt("compute path", lambda: check_compute(settings), "See the model and the engine's settings.")
    yield from _attempt("memory", memory, "See the engine's settings.")
    yield check_kernel_cache()
    yield from _attempt("triton", check_triton, "")
    yield check_disk(settings)
    yield from _attempt("weights cache", lambda: check_weights_cache(settings), "Make it writable.")
    yield from _attempt("database", lambda: check_database(settings), "Check --database-url and that it is running.")
    yield check_static()
    yield from _attempt("port", lambda: check_port(settings), "")


def _attempt(name: str, check: Callable[[], Check], remedy: str) -> Iterator[Check]:
    """The check; whatever it raises is a failure with its words."""
    try:
        yield check()
    except Exception as error:
        yield Check("fail", f"{name}: {getattr(error, 'orig', error)}", remedy)
