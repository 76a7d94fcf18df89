"""A real server in a process of its own, started by the command users type, on a free port and a fresh data folder."""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loraplex.web.load_generator import Server

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Serving(Server):
    pid: int
    """Of the API process."""


@contextlib.contextmanager
def serving(model: Path, adapters: dict[str, Path], checkout: Path = ROOT, /, **settings: object) -> Iterator[Serving]:
    """Serve `model` with `adapters` by the code of `checkout`; yields when it is ready, ends it on the way out."""
    with tempfile.TemporaryDirectory(prefix="loraplex-bench-") as folder:
        server = Server("127.0.0.1", _free_port(), f"lp-bench-{secrets.token_hex(24)}")
        environment = os.environ | {
            "LORAPLEX_MODEL": str(model),
            "LORAPLEX_DATA_DIR": folder,
            "LORAPLEX_HOST": server.host,
            "LORAPLEX_PORT": str(server.port),
            "LORAPLEX_API_KEY": server.key,
            "LORAPLEX_LOG_LEVEL": "warning",
            "PYTHONPATH": str(checkout / "src"),
            **{f"LORAPLEX_{name.upper()}": str(value) for name, value in settings.items()},
        }
        command = [sys.executable, "-m", "loraplex"]
        if adapters:
            named = [f"{name}={source}" for name, source in adapters.items()]
            subprocess.run(
                [sys.executable, "-m", "benchmarks.register", *named], env=environment, check=True, cwd=checkout
            )
        process = subprocess.Popen([*command, "serve"], env=environment, cwd=checkout, stdout=subprocess.DEVNULL)
        try:
            _wait_until_ready(process, server)
            yield Serving(server.host, server.port, server.key, process.pid)
        finally:
            process.terminate()
            process.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: "subprocess.Popen[bytes]", server: Server, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{server.host}:{server.port}/ready", timeout=2).close()
            return
        time.sleep(0.2)
    raise TimeoutError(f"the server was not ready after {seconds:.0f} s")
