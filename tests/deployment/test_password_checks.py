"""The services of docker-compose.yml that judge passwords before PostgreSQL and Grafana take them: their command, run
against files as somebody may have written them by hand."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.web.typed import Run, typed

from .dockerfile import ROOT
from .test_compose import PASSWORD_CHECKS

GOOD = "k7Qv-correct-horse-92"
REFUSED: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "cannot be read: No such file or directory. Name a file that this user can read"),
    "empty": (b"", "is empty. Put the secret into it"),
    "blank": (b" \n", "is empty. Put the secret into it"),
    "Grafana's default": (b"admin\n", "Choose a longer one"),
    "short": (b"k7Qv-92\n", "Choose a longer one"),
    "a sample": (b"changeme\n", "easily guessed. Make one with: openssl rand -hex 24"),
    "a sample in disguise": (b"P@ssw0rd-1\n", "easily guessed. Make one with: openssl rand -hex 24"),
    "the program's name": (b"grafana-2026\n", "easily guessed. Make one with: openssl rand -hex 24"),
    "the user's name of the database": (b"loraplex\n", "easily guessed. Make one with: openssl rand -hex 24"),
    "one letter": (b"aaaaaaaaaaaaaaaa\n", "easily guessed. Make one with: openssl rand -hex 24"),
    "two lines": (b"k7Qv-correct\nhorse-92\n", "printable characters"),
    "no text": (b"\xff\xfe\x00secret", "not UTF-8 text. Make one with"),
    "no secret": (b"x" * 5000, "Name another file"),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """In this process, with a setting that would end each word which reads settings: this one reads none."""
    monkeypatch.setenv("LORAPLEX_PORT", "none")
    return typed(monkeypatch, capsys)


def command_of(service: str, folder: Path) -> tuple[list[str], Path]:
    """What the service runs, with its secrets in `folder`, and the file that it judges."""
    command = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][service]["command"]
    words = [str(word).replace("/run/secrets", str(folder)) for word in command]
    return words, Path(words[-1])


@pytest.mark.parametrize("service", PASSWORD_CHECKS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_weak_password_is_refused(service: str, case: str, run: Run, tmp_path: Path) -> None:
    content, words = REFUSED[case]
    command, file = command_of(service, tmp_path)
    if content is not None:
        file.write_bytes(content)
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith(f"loraplex: {file}") and words in line
    secret = (content or b"").decode(errors="replace").strip()
    assert not secret or secret not in line.removeprefix(f"loraplex: {file}"), "a refusal ends up in logs"


@pytest.mark.parametrize("service", PASSWORD_CHECKS)
@pytest.mark.parametrize("mode", [0o400, 0o444], ids=oct)
def test_a_good_one_is_not(service: str, mode: int, run: Run, tmp_path: Path) -> None:
    """Without this, a check that refuses everything would pass the test above. Who may read the file is not judged."""
    command, file = command_of(service, tmp_path)
    file.write_text(GOOD + "\n")
    file.chmod(mode)
    code, out, err = run(*command)
    assert (code, err) == (0, "") and str(file) in out.replace("\n", "") and GOOD not in out


def test_what_make_secrets_makes_is_good(run: Run, tmp_path: Path) -> None:
    for folder in ("secrets/server", "prometheus", "grafana"):
        (tmp_path / folder).mkdir(parents=True)
    script = tmp_path / "make_secrets.sh"
    script.write_bytes((ROOT / "deploy" / "make_secrets.sh").read_bytes())
    subprocess.run(["sh", script], check=True, stdout=subprocess.DEVNULL)
    files = [tmp_path / "secrets" / "server" / "postgres_password", tmp_path / "secrets" / "grafana_password"]
    code, out, err = run("secrets", "check", *files, "--json")
    assert (code, err) == (0, "") and json.loads(out) == {"checked": [str(file) for file in files]}


def test_each_file_is_judged(run: Run, tmp_path: Path) -> None:
    good, weak = tmp_path / "good", tmp_path / "weak"
    good.write_text(GOOD)
    weak.write_text("changeme")
    code, out, err = run("secrets", "check", good, weak)
    assert (code, out) == (2, "") and f"{weak} is easily guessed" in err


def test_a_check_of_nothing_is_refused(run: Run, tmp_path: Path) -> None:
    code, _, err = run("secrets", "check")
    assert code == 2 and "FILE" in err
    code, _, err = run("secrets", "check", tmp_path)
    assert code == 2 and "Is a directory" in err
