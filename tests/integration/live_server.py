"""LiveServer: `loraplex serve` as a process of its own, as an operator runs it."""

import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 240.0
"""The first start on a machine compiles the kernels."""
LOOKS = 0.1
"""Seconds between two looks whether it is ready: while it compiles, each takes time from it."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: a client without one reads all certificates of the machine, which takes longer than most requests."""
ADMIN_PASSWORD = "correct horse battery"
BASE = "tiny"


PORTS = range(15_000, 32_000)
"""Below those of the system's own choice, which other tests take while a server starts."""


def free_port() -> int:
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(settings: dict[str, object]) -> dict[str, str]:
    """This process's, with exactly these settings of ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")}
    return inherited | {f"LORAPLEX_{name.upper()}": str(value) for name, value in settings.items()}


class LiveServer:
    """`settings` are fields of Settings; `folder` keeps the data and the log over several lives."""

    python = sys.executable
    """Of the environment that loraplex is installed in."""

    def __init__(self, folder: Path, model: Path, **settings: object) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data_dir = folder / "data"
        self.settings: dict[str, object] = {
            "port": self.port,
            "data_dir": self.data_dir,
            "model": model,
            "served_name": BASE,
            "admin_password": ADMIN_PASSWORD,
            "num_threads": 1,
            "adapter_memory": "8MiB",
            "min_free_bytes": 0,
            **settings,
        }
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._admin_key: str | None = None

    def start(self) -> float:
        """Return when it is ready; the seconds that took."""
        started = time.monotonic()
        self.spawn()
        with httpx.Client(base_url=self.url, timeout=5, verify=NO_TLS) as http:
            while time.monotonic() < started + START_SECONDS:
                if self._is_ready(http):
                    return time.monotonic() - started
                time.sleep(LOOKS)
        raise AssertionError(f"not ready after {START_SECONDS:.0f} s\n{self.log()}")

    def spawn(self) -> None:
        self.spawn_in(None, "serve")

    def spawn_in(self, folder: Path | None, *words: str) -> None:
        """`loraplex serve` with flags; None: in the folder of this process."""
        command = [self.python, "-m", "loraplex", *words]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(self.settings), cwd=folder
            )

    def until_said(self, words: str) -> None:
        """Return when the log has these words."""
        deadline = time.monotonic() + START_SECONDS
        while words not in self.log():
            self.check_alive()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def processes(self) -> list[int]:
        """All that are left of this server and what it has started, whoever their parent is now."""
        mark = f"LORAPLEX_DATA_DIR={self.data_dir}".encode()
        return [pid for pid in _all_processes() if mark in _environment(pid).split(b"\0")]

    def left_behind(self, seconds: float = 10) -> list[int]:
        """Processes that are still there this long after the server has ended: an engine that starts notices it."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def command(self, *arguments: str) -> None:
        """Run `loraplex ...` beside the server, with its settings."""
        command = [self.python, "-m", "loraplex", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(self.settings))
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def signal_stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As a machine's memory killer does it; the engine is left to notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait_stopped(self, seconds: float) -> int:
        """Its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"still there {seconds:.0f} s after the signal\n{self.log()}") from None

    def end(self) -> None:
        """However it fares, it is gone afterwards."""
        if self._process is not None and self._process.poll() is None:
            self.signal_stop()
            self.wait_stopped(60)

    def check_alive(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"the server ended with {self._process.returncode}\n{self.log()}"

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def admin_key(self) -> str:
        """An administrator's key, made the way a person makes one: log in, take a new key."""
        if self._admin_key is None:
            self._admin_key = self._make_key()
        return self._admin_key

    def client(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(**self._client_options(key))

    def async_client(self, key: str | None = None) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(**self._client_options(key), limits=limits)

    @property
    def pid(self) -> int:
        """Of the API process."""
        assert self._process is not None
        return self._process.pid

    def engine_pid(self) -> int:
        """The engine, found among the server's children."""
        assert self._process is not None
        found = [child for child in _children(self._process.pid) if b"loraplex.engine.ipc.process" in _command(child)]
        assert len(found) == 1, found
        return found[0]

    def _is_ready(self, http: httpx.Client) -> bool:
        self.check_alive()
        try:
            return http.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _client_options(self, key: str | None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {key or self.admin_key}"}
        return {"base_url": self.url, "headers": headers, "timeout": 120, "verify": NO_TLS}

    def _make_key(self) -> str:
        origin = {"origin": self.url}
        with httpx.Client(base_url=self.url, headers=origin, timeout=60, verify=NO_TLS) as person:
            assert person.post("/login", data={"user": "admin", "password": ADMIN_PASSWORD}).status_code == 303
            page = person.get("/").text
            found = re.search(r'name="csrf-token" content="([^"]+)"', page)
            assert found, page
            body = {"name": "tests", "scopes": ["admin"]}
            made = person.post("/api/v1/keys", json=body, headers={"x-csrf-token": found[1]})
            assert made.status_code == 201, made.text
            return str(made.json()["token"])


def _children(pid: int) -> list[int]:
    return [child for child in _all_processes() if _parent(child) == pid]


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
