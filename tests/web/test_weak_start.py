"""The program itself with weak settings: it ends before it takes a port or makes a file, and says why in one line."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from loraplex.web.settings.secrets import SECRETS
from loraplex.web.settings.sources import CONFIG_FILE

from .test_weak_settings import WEAK
from .typed import Run, typed

STARTED = (
    "a short password",
    "a sample password in a file",
    "a settings file with a secret that everyone may read",
    "the sample password of PostgreSQL",
    "a negative size",
)
"""One for each way in which a setting comes and is refused. A start costs a process: the others run the same `main`
in this one."""
REMEDY = re.compile(r"\b(change|choose|close|give|leave|make|name|put|restrict|run|set|use):? ", re.IGNORECASE)


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Whoever wants to listen there is told so, instead of what is wrong with the settings."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


class Weak:
    """A weak configuration as environment of the program, in a data folder of its own."""

    def __init__(self, case: str, folder: Path, port: int) -> None:
        change, self._words = WEAK[case]
        self._given = change(folder)
        self._folder, self._files = folder, sorted(folder.iterdir())
        values = {"data_dir": folder, "port": port} | self._given
        self.environment = {f"LORAPLEX_{name.upper()}": str(value) for name, value in values.items()}

    def check(self, code: int, out: str, err: str) -> None:
        """How the program ended, and what it said."""
        assert (code, out) == (2, "")
        [line] = err.splitlines()
        assert line.startswith("loraplex: ") and self._words in line
        assert any(name.removesuffix("_file") in line for name in self._given or [CONFIG_FILE]), "which setting"
        assert REMEDY.search(line), "what to do"
        for secret in filter(None, self._secrets()):
            assert secret not in line.removeprefix("loraplex: ")
        assert sorted(self._folder.iterdir()) == self._files, "nothing was made"

    def _secrets(self) -> Iterator[str]:
        for name in SECRETS:
            yield str(self._given.get(name, "")).strip()
            file = self._given.get(f"{name}_file")
            if isinstance(file, Path) and file.is_file():
                yield file.read_bytes().decode(errors="replace").strip()
        if "://" in (url := str(self._given.get("database_url", ""))):
            yield str(make_url(url).password or "")
        file = self._folder / CONFIG_FILE
        yield from re.findall(r'"(.+)"', file.read_text() if file.exists() else "")


@pytest.mark.parametrize("case", STARTED)
def test_the_program_refuses_to_start(case: str, tmp_path: Path, taken_port: int) -> None:
    weak = Weak(case, tmp_path, taken_port)
    command = [sys.executable, "-m", "loraplex", "serve"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=inherited() | weak.environment)
    weak.check(ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("case", sorted(WEAK.keys() - set(STARTED)))
def test_its_command_refuses_every_other(
    case: str, tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = 8000 if case == "one port for two" else taken_port
    weak = Weak(case, tmp_path, port)
    for name in os.environ.keys() - inherited().keys():
        monkeypatch.delenv(name)
    for name, value in weak.environment.items():
        monkeypatch.setenv(name, value)
    run: Run = typed(monkeypatch, capsys)
    weak.check(*run("serve"))


def test_the_settings_they_differ_from_get_as_far_as_the_port(tmp_path: Path, taken_port: int) -> None:
    """Without this, a program that fails at once would pass the tests above."""
    values = {"LORAPLEX_DATA_DIR": str(tmp_path), "LORAPLEX_PORT": str(taken_port)}
    command = [sys.executable, "-m", "loraplex", "serve"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=inherited() | values)
    assert ended.returncode == 2 and str(taken_port) in ended.stderr and "Traceback" not in ended.stderr


def inherited() -> dict[str, str]:
    """This process's environment without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")}
