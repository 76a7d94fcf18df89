"""Run the Dockerfile's steps in a clean folder, then serve from it as the container would: `make image-check`.

No container engine is needed. Each stage gets a folder that stands for its file system, absolute paths of its steps
lead into it. Left out are only the steps that change the system itself (packages, users); the rest runs as written, on
this machine's Python and Node.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.integration.live_server import free_port

from .dockerfile import ROOT, Stage, Step, environment_of, line_of, read

OF_THE_SYSTEM = ("apt-get", "groupadd", "useradd", "install --directory")
PLACES = ("/opt/venv", "/opt/loraplex", "/build", "/data", "/cache")
"""Folders that the image has and this machine has not."""
START_SECONDS = 600
STOP_SECONDS = 60


class Image:
    """`folder` gets one sub-folder for each stage that is made."""

    def __init__(self, stages: dict[str, Stage], folder: Path, arguments: dict[str, str]) -> None:
        self._stages, self._folder, self._arguments = stages, folder, arguments

    def make(self, name: str) -> Path:
        """The stage's file system, after all its steps."""
        root = self._folder / name
        if not root.exists():
            self._make(self._stages[name], root)
        return root

    def _make(self, stage: Stage, root: Path) -> None:
        if stage.base in self._stages:
            shutil.copytree(self.make(stage.base), root, symlinks=True)
        else:
            root.mkdir(parents=True)
        work, environment = self._beginning(stage, root)
        for step in stage.steps:
            if step.word == "WORKDIR":
                work = inside(root, step.text)
                work.mkdir(parents=True, exist_ok=True)
            elif step.word == "COPY":
                self._copy(step, root, work)
            elif step.word == "ARG":
                variable, _, value = step.words[0].partition("=")
                environment[variable] = self._arguments.get(variable, value)
            elif step.word == "RUN":
                self._run(stage.name, step, root, work, environment)

    def _beginning(self, stage: Stage, root: Path) -> tuple[Path, dict[str, str]]:
        """The folder that a stage begins in, and its variables."""
        folders = [step.text for made in line_of(self._stages, stage.name)[:-1] for step in made.all("WORKDIR")]
        values = environment_of(self._stages, stage.name) if stage.base in self._stages else {}
        values["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return inside(root, folders[-1] if folders else "/"), values

    def _copy(self, step: Step, root: Path, work: Path) -> None:
        *sources, target = step.words
        other = step.option("from")
        place = inside(root, target) if target.startswith("/") else work / target
        for source in sources:
            origin = ROOT / source if other is None else inside(self.make(other), source)
            into = place / origin.name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            if origin.is_dir():
                ignored = None if other else shutil.ignore_patterns("__pycache__", "node_modules", "vendor")
                shutil.copytree(origin, into, symlinks=True, dirs_exist_ok=True, ignore=ignored)
            else:
                shutil.copy(origin, into)

    def _run(self, name: str, step: Step, root: Path, work: Path, environment: dict[str, str]) -> None:
        if step.text.startswith(OF_THE_SYSTEM):
            print(f"  {name}: left out, it changes the system: {step.text}", flush=True)
            return
        started = time.monotonic()
        values = os.environ | {key: moved(value, root) for key, value in environment.items()}
        subprocess.run(["sh", "-euc", moved(step.text, root)], cwd=work, env=values, check=True)
        print(f"  {name}: {step.text}  ({time.monotonic() - started:.0f} s)", flush=True)


def inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def moved(text: str, root: Path) -> str:
    """The image's own folders as those below `root`."""
    return re.sub("|".join(f"(?<![\\w.]){place}\\b" for place in PLACES), lambda found: f"{root}{found[0]}", text)


def serve(stages: dict[str, Stage], root: Path, target: str) -> None:
    """Start the image's command with its variables alone; health check, one answer, SIGTERM, exit code 0."""
    values = {name: moved(value, root) for name, value in environment_of(stages, target).items()}
    port = free_port()
    values |= {"LORAPLEX_HOST": "127.0.0.1", "LORAPLEX_PORT": str(port)}
    values["PATH"] = f"{root}/opt/venv/bin:{root}/opt/loraplex/bin:{os.environ['PATH']}"
    for name in ("data", "cache"):
        (root / name).mkdir(mode=0o700)
    line = line_of(stages, target)
    command = [
        word for kind in ("ENTRYPOINT", "CMD") for stage in line for step in stage.all(kind) for word in step.words
    ]
    check = Step("CMD", last(line, "HEALTHCHECK").text.partition("CMD ")[2])
    before = tree(root / "opt")
    server = subprocess.Popen([shutil.which(command[0], path=values["PATH"]) or command[0], *command[1:]], env=values)
    try:
        wait_healthy(server, [moved(word, root) for word in check.words], values)
        models = answer(port, root)
        print(f"  healthy; it serves {models}", flush=True)
        server.send_signal(signal.SIGTERM)
        assert server.wait(STOP_SECONDS) == 0, f"ended with {server.returncode}"
    finally:
        server.kill()
        server.wait()
    written = sorted({place for place, _ in tree(root / "opt").items() ^ before.items()})
    assert not written, f"it wrote to what the container has read-only: {', '.join(written[:20])}"


def last(line: list[Stage], word: str) -> Step:
    return [step for stage in line for step in stage.all(word)][-1]


def wait_healthy(server: "subprocess.Popen[bytes]", check: list[str], values: dict[str, str]) -> None:
    python, *rest = check
    deadline = time.monotonic() + START_SECONDS
    while True:
        found = subprocess.run(
            [shutil.which(python, path=values["PATH"]) or python, *rest], env=values, capture_output=True, text=True
        )
        if found.returncode == 0:
            return
        assert server.poll() is None, f"the server ended with {server.returncode}"
        assert time.monotonic() < deadline, f"never healthy: {found.stderr}"
        time.sleep(1)


def answer(port: int, root: Path) -> str:
    """What /v1/models says to the key of the first start."""
    key = re.search(r'"api_key": *"([^"]+)"', (root / "data" / "credentials.json").read_text())
    assert key
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models", headers={"authorization": f"Bearer {key[1]}"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
        return ", ".join(model["id"] for model in json.load(response)["data"])


def tree(folder: Path) -> dict[str, int]:
    """Files and their times: what a server with a read-only root may not change."""
    return {str(file): file.lstat().st_mtime_ns for file in folder.rglob("*")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    stages = read()
    folder = Path(tempfile.mkdtemp(prefix="loraplex-image-"))
    try:
        image = Image(stages, folder, dict(pair.split("=", 1) for pair in given.build_arg))
        root = image.make(given.target)
        serve(stages, root, given.target)
        print(f"The steps of the target {given.target} make an image that serves.")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
