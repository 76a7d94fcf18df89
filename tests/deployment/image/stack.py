"""docker-compose.yml, read by podman-compose in a folder of its own and started service by service."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.deployment.dockerfile import ROOT
from tests.integration.live_server import free_port

from .engine import Engine

START_SECONDS = 900
"""As long as the image's health check waits: the first start compiles."""
STOP_SECONDS = 60


class Stack:
    """`folder` gets what docs/deploy.md needs of the checkout, with secrets as `make secrets` makes them."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.port = free_port()
        self._engine, self._folder = engine, folder
        folder.mkdir()
        for name in ("docker-compose.yml", ".env"):
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "deploy", folder / "deploy", ignore=shutil.ignore_patterns("*_password"))
        subprocess.run(["sh", "deploy/make_secrets.sh"], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    def create(self, profiles: str, *services: str, database: str = "sqlite") -> None:
        """Containers as the file says. podman-compose 1.6 fails to start them: it takes no optional dependency."""
        self._compose("up", "--no-build", "--no-start", *services, profiles=profiles, database=database)

    def remove(self, profiles: str) -> None:
        """All containers; volumes stay."""
        self._compose("down", profiles=profiles)

    def run(self, service: str, *words: str, input: bytes | None = None) -> str:
        """As `docker compose run --rm -T`: what it writes."""
        return self._compose("run", "--rm", "--no-deps", "-T", service, *words, input=input)

    def _compose(self, *words: str, profiles: str = "cpu", database: str = "sqlite", input: bytes | None = None) -> str:
        values = {"COMPOSE_PROFILES": profiles, "DATABASE": database, "PORT": str(self.port)}
        ended = subprocess.run(
            [sys.executable, "-m", "podman_compose", *words],
            cwd=self._folder,
            env=self._engine.environment | values,
            input=input,
            capture_output=True,
        )
        assert ended.returncode == 0, f"{words}: {ended.stdout.decode()}{ended.stderr.decode()}"
        return ended.stdout.decode()

    def secret(self, name: str) -> Path:
        return self._folder / "deploy" / "secrets" / name

    def start_all(self) -> None:
        """Podman 4.3 starts a container that needs one that needs a third only with all of them."""
        self._engine.run("pod", "start", "pod_loraplex")

    def run_to_end(self, service: str) -> tuple[int, str]:
        """Exit code and what it wrote."""
        ended = self._engine.run("start", "--attach", container(service), check=False)
        return ended.returncode, (ended.stdout + ended.stderr).decode()


def container(service: str) -> str:
    return f"loraplex_{service}_1"


def start(engine: Engine, name: str) -> float:
    """Return when it is healthy; the seconds that took."""
    started = time.monotonic()
    engine.run("start", name)
    wait_healthy(engine, name)
    return time.monotonic() - started


def wait_healthy(engine: Engine, name: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (found := engine.run("healthcheck", "run", name, check=False)).returncode != 0:
        running = engine.text("inspect", "--format", "{{.State.Running}}", name) == "true"
        if not running or time.monotonic() > deadline:
            raise AssertionError(f"{name} is not healthy: {found.stderr.decode()}{log_of(engine, name)}")
        time.sleep(2)


def stop(engine: Engine, name: str) -> float:
    """By its stop signal; the seconds until it ended with 0."""
    started = time.monotonic()
    engine.run("stop", f"--time={STOP_SECONDS}", name)
    seconds = time.monotonic() - started
    code = engine.text("inspect", "--format", "{{.State.ExitCode}}", name)
    assert code == "0", f"{name} ended with {code}: {log_of(engine, name)}"
    return seconds


def log_of(engine: Engine, name: str) -> str:
    ended = engine.run("logs", name, check=False)
    return (ended.stdout + ended.stderr).decode()
