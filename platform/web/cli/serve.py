"""`loraplex serve`: start-up in steps with their times, then a box with everything a person needs."""

import asyncio
import signal
import socket
import sys
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console

from loraplex.engine.client import EngineClient
from loraplex.engine.model.folder import resolve_model_folder

from ..logs import configure_logs
from ..monitoring import monitoring
from ..server import Server, run_in_loop
from ..settings import Settings
from ..state import State, open_state
from .banner import print_banner
from .demo import add_demo_adapters, demo_wanted
from .ending import end_at_once
from .flags import settings_flags
from .port import listen
from .steps import step, tell_progress

console = Console(highlight=False)


@settings_flags
def serve(settings: Settings) -> None:
    """Serve the base model and its adapters."""
    # Until the server listens to signals: what it has begun by then, any crash may interrupt.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_at_once)
    configure_logs(settings.log_level, settings.log_json)
    with listen(settings.host, settings.port) as listener, _monitoring_listener(settings) as other:
        sys.exit(run_in_loop(_run(_prepared(settings), listener, other)))


def _monitoring_listener(settings: Settings) -> AbstractContextManager[socket.socket | None]:
    if settings.metrics_port is None:
        return nullcontext()
    return listen(settings.metrics_host, settings.metrics_port, "--metrics-port")


def _prepared(settings: Settings) -> State:
    """Everything but the engine, which starts with the server."""
    with step("model found"):
        folder = resolve_model_folder(settings.model)
    first_start = demo_wanted(settings)
    with step("database migrated, registry open"):
        engine = EngineClient(settings.engine_config(folder), on_progress=tell_progress)
        state = open_state(settings, folder, engine)
    if first_start:
        with step("demo adapters registered"):
            add_demo_adapters(state)
    return state


async def _run(state: State, listener: socket.socket, other: socket.socket | None) -> int:
    """Serve until a signal; returns the exit code. `other` is for monitoring."""
    server = Server(state)
    announcement = asyncio.create_task(_announce(state, server))
    async with monitoring(state, other):
        await server.serve(sockets=[listener])
    announcement.cancel()
    return 1 if state.start_error else 0


async def _announce(state: State, server: Server) -> None:
    """Print the box when the engine is ready; end the server when it cannot start."""
    await state.started.wait()
    if state.start_error:
        console.print(
            f"The engine could not start: {state.start_error}", style="bold red", markup=False, soft_wrap=True
        )
        server.should_exit = True
    elif not state.stopping.is_set():
        print_banner(console, state)
