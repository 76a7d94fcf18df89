"""`loraplex serve`: settings and ports are judged before anything slow is imported. Then the engine process starts, so
that it imports torch and reads the weights while this one imports the web server."""

import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType

from loraplex.engine.model.folder import resolve_model_folder
from loraplex.engine.processes.spawn import EngineProcess

from ...observability.logs import configure_logs
from ...settings.data_folder import prepare_data_folder
from ...settings.settings import Settings
from ..ending import end_at_once
from ..flags import settings_flags
from ..port import listen
from ..steps import step


@settings_flags
def serve(settings: Settings) -> None:
    """Serve the base model and its adapters."""
    started = time.perf_counter()
    # Until the server listens to signals: what it has begun by then, any crash may interrupt.
    _listen_to_signals(end_at_once)
    configure_logs(settings.log_level, settings.log_json)
    with listen(settings.host, settings.port) as listener, _monitoring_listener(settings) as other:
        engine = _start_engine(settings)
        _listen_to_signals(partial(_end_with, engine))
        from .start import run_server

        sys.exit(run_server(settings, engine, started, listener, other))


def _listen_to_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _end_with(engine: EngineProcess, number: int, frame: FrameType | None) -> None:
    engine.kill()
    end_at_once(number, frame)


def _start_engine(settings: Settings) -> EngineProcess:
    with step("model found"):
        folder = resolve_model_folder(settings.model)
    prepare_data_folder(settings.data_dir)
    try:
        return EngineProcess(settings.engine_config(folder))
    except OSError as error:
        raise ValueError(f"the engine process could not be started: {error}") from error


def _monitoring_listener(settings: Settings) -> AbstractContextManager[socket.socket | None]:
    if settings.metrics_port is None:
        return nullcontext()
    return listen(settings.metrics_host, settings.metrics_port, "--metrics-port")
