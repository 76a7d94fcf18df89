"""From a port to a server that runs: start-up in steps with their times, then a box with everything a person needs."""

import asyncio
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from loraplex.engine.ipc.client import EngineClient
from loraplex.engine.processes.long_lived import keep_for_good
from loraplex.engine.processes.spawn import EngineProcess

from ...grpc_entry.server import serving_grpc
from ...monitoring import monitoring
from ...server import Server, run_in_loop
from ...settings.running_server import RunningServer, announced, local_url
from ...settings.settings import Settings
from ...state import State, open_state
from ..steps import step, tell_progress
from .banner import print_banner
from .demo import add_demo_adapters, demo_wanted

console = Console(highlight=False)


def run_server(
    settings: Settings, engine: EngineProcess, started: float, listener: socket.socket, other: socket.socket | None
) -> int:
    """Serve until a signal; returns the exit code. `engine` has just been started, and the word itself at `started`
    (time.perf_counter). `other` is for monitoring."""
    first_start = not (settings.data_dir / "credentials.json").exists()
    return run_in_loop(_run(_prepared(settings, engine), first_start, started, listener, other))


def _prepared(settings: Settings, engine: EngineProcess) -> State:
    """Everything but the engine, which starts meanwhile. It ends by itself where this fails."""
    first_start = demo_wanted(settings)
    with step("database migrated, registry open"):
        client = EngineClient(engine.config, on_progress=tell_progress, started=engine)
        state = open_state(settings, Path(engine.config.model), client)
    if first_start:
        with step("demo adapters registered"):
            add_demo_adapters(state)
    return state


async def _run(
    state: State, first_start: bool, started: float, listener: socket.socket, other: socket.socket | None
) -> int:
    server = Server(state)
    announcement = asyncio.create_task(_announce(state, server, first_start, started))
    with announced(state.settings.data_dir, _where(state, listener)):
        async with monitoring(state, other), serving_grpc(state):
            await server.serve(sockets=[listener])
    announcement.cancel()
    return 1 if state.start_error else 0


def _where(state: State, listener: socket.socket) -> RunningServer:
    return RunningServer(
        url=local_url(*listener.getsockname()[:2]),
        key=state.local_key,
        pid=os.getpid(),
        started_at=datetime.now(UTC).isoformat(timespec="microseconds"),
        base=state.base.name,
        model=str(state.model_folder.resolve()),
    )


async def _announce(state: State, server: Server, first_start: bool, started: float) -> None:
    """Print the box when the engine is ready; end the server when it cannot start."""
    await state.started.wait()
    if state.start_error:
        console.print(
            f"The engine could not start: {state.start_error}", style="bold red", markup=False, soft_wrap=True
        )
        server.should_exit = True
    elif not state.stopping.is_set():
        print_banner(console, state, first_start, time.perf_counter() - started)
        keep_for_good()
