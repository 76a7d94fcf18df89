"""`loraplex serve`: settings and ports are judged before anything slow is imported."""

import signal
import socket
import sys
from contextlib import AbstractContextManager, nullcontext

from ..logs import configure_logs
from ..settings import Settings
from .ending import end_at_once
from .flags import settings_flags
from .port import listen


@settings_flags
def serve(settings: Settings) -> None:
    """Serve the base model and its adapters."""
    # Until the server listens to signals: what it has begun by then, any crash may interrupt.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_at_once)
    configure_logs(settings.log_level, settings.log_json)
    with listen(settings.host, settings.port) as listener, _monitoring_listener(settings) as other:
        from .start import run_server

        sys.exit(run_server(settings, listener, other))


def _monitoring_listener(settings: Settings) -> AbstractContextManager[socket.socket | None]:
    if settings.metrics_port is None:
        return nullcontext()
    return listen(settings.metrics_host, settings.metrics_port, "--metrics-port")
