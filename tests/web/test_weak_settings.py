"""Configurations that must not start, each refused in words that say what to do, never with the secret in them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from loraplex.web.settings import secrets as setting_secrets
from loraplex.web.settings.data_folder import prepare_data_folder
from loraplex.web.settings.settings import Settings

GOOD = "k7Qv-correct-horse-92"
SERVER = "postgresql://me@db/loraplex"
OPEN = {"host": "0.0.0.0"}
"""Others reach it: on a loopback address a weak key is accepted with a warning."""
Change = Callable[[Path], dict[str, object]]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LORAPLEX_DATA_DIR", str(tmp_path))


def secret_file(folder: Path, content: bytes = GOOD.encode(), mode: int = 0o600) -> Path:
    file = folder / "secret-file"
    file.write_bytes(content)
    file.chmod(mode)
    return file


def settings_file(text: str, mode: int) -> Change:
    def write(folder: Path) -> dict[str, object]:
        (folder / "loraplex.toml").write_text(text)
        (folder / "loraplex.toml").chmod(mode)
        return {}

    return write


def given(**values: object) -> Change:
    return lambda folder: values


def of_file(name: str, content: bytes = GOOD.encode(), mode: int = 0o600, **values: object) -> Change:
    return lambda folder: {f"{name}_file": secret_file(folder, content, mode), **values}


WEAK: dict[str, tuple[Change, str]] = {
    "an empty password": (given(admin_password=""), "Choose a longer one"),
    "a short password": (given(admin_password="k7Qv-92"), "Choose a longer one"),
    "a password with a space at its end": (given(admin_password=GOOD + " "), "no space at either end"),
    "a sample password": (given(admin_password="ChangeMe-2026!"), "openssl rand -hex 24"),
    "the product's name as password": (given(admin_password="loraplex-2026"), "openssl rand -hex 24"),
    "a password of one letter": (given(admin_password="aaaaaaaaaaaaaaaa"), "openssl rand -hex 24"),
    "the user's name as password": (given(admin_password="admin123"), "openssl rand -hex 24"),
    "a word of samples in disguise": (given(admin_password="P@ssw0rd-1"), "openssl rand -hex 24"),
    "a row of the keyboard as password": (given(admin_password="Qwerty-2026"), "openssl rand -hex 24"),
    "an empty key": (given(api_key=""), "longer"),
    "a short key": (given(api_key="k7Qv-92", **OPEN), "longer"),
    "the key of every example": (given(api_key="sk-1234567890abcdef", **OPEN), "one is made at the first start"),
    "a placeholder as key": (given(api_key="your-api-key-here", **OPEN), "openssl rand -hex 24"),
    "the key of vLLM's examples": (given(api_key="token-abc123", **OPEN), "openssl rand -hex 24"),
    "a key that says there is none": (given(api_key="sk-no-key-required", **OPEN), "openssl rand -hex 24"),
    "a key in order": (given(api_key="0123456789abcdef", **OPEN), "openssl rand -hex 24"),
    "a password twice": (of_file("admin_password", admin_password=GOOD), "use one of them"),
    "a key twice": (of_file("api_key", api_key=GOOD), "use one of them"),
    "an empty password beside a file": (of_file("admin_password", admin_password=""), "use one of them"),
    "a file that is not there": (lambda folder: {"admin_password_file": folder / "no"}, "this user can read"),
    "a folder as file": (lambda folder: {"api_key_file": folder}, "Is a directory"),
    "an empty file": (of_file("admin_password", b" \n"), "is empty. Put the secret into it"),
    "a file that everyone may read": (of_file("admin_password", mode=0o644), "chmod 600"),
    "a file that everyone may write": (of_file("api_key", mode=0o602), "chmod 600"),
    "a file that is not text": (of_file("api_key", b"\xff\xfe\x00secret"), "not UTF-8"),
    "a file that is no secret": (of_file("api_key", b"x" * 5000), "Name another file"),
    "a sample password in a file": (of_file("admin_password", b"password123\n"), "easily guessed"),
    "a settings file with a secret that everyone may read": (
        settings_file(f'api_key = "{GOOD}"', 0o644),
        "chmod 600",
    ),
    "a settings file that everyone may write": (settings_file("port = 9", 0o666), "chmod o-w"),
    "a database that is not supported": (given(database_url="mysql://me@db/loraplex"), "Use sqlite"),
    "no address of a database": (given(database_url="somewhere"), "Use sqlite"),
    "a database in memory": (given(database_url="sqlite://"), "needs a file"),
    "a server without a database": (given(database_url="postgresql://me@db"), "names no database"),
    "a TLS mode without a check": (given(database_url=f"{SERVER}?sslmode=allow"), "Use disable, prefer"),
    "the sample password of PostgreSQL": (
        given(database_url="postgresql://postgres:postgres@db/loraplex"),
        "openssl rand -hex 24",
    ),
    "the user's name as the database's password": (
        given(database_url="postgresql://keeper-of-all@db/x", database_password="keeper-of-all"),
        "database_password: the password is easily guessed",
    ),
    "an empty password of the database": (given(database_url=SERVER, database_password=""), "easily guessed"),
    "two passwords of the database": (
        given(database_url=f"postgresql://me:{GOOD}@db/loraplex", database_password=GOOD),
        "use one of them",
    ),
    "a password of the database twice": (
        of_file("database_password", database_url=SERVER, database_password=GOOD),
        "use one of them",
    ),
    "a password for SQLite": (given(database_password=GOOD), "does not name a PostgreSQL server"),
    "all of the machine as adapter folder": (given(adapter_folders="/"), "name the folder that contains"),
    "no address": (given(host=""), "at least 1 character"),
    "one port for two": (given(metrics_port=8000), "set metrics_port to another port"),
    "a port beyond all": (given(metrics_port=65536), "less than or equal to 65535"),
    "a negative size": (given(adapter_memory="-1GiB"), "give 0 or more"),
    "a negative number of bytes": (given(max_body_bytes=-1), "give 0 or more"),
    "a negative queue": (given(max_queue=-1), "greater than or equal to 1"),
    "an endless drain": (given(drain_seconds=float("inf")), "finite number"),
    "a path that leads elsewhere": (given(root_path="//evil.example"), "give a path such as /loraplex"),
}


@pytest.mark.parametrize("case", WEAK)
def test_weak_configurations_are_refused(case: str, tmp_path: Path) -> None:
    change, words = WEAK[case]
    values = change(tmp_path)
    with pytest.raises(ValueError) as refused:
        Settings(**values)
    text = str(refused.value)
    assert words in text
    assert GOOD not in text, "a refusal ends up in logs"


def test_the_settings_they_differ_from_are_fine(tmp_path: Path) -> None:
    """Without this, a check that refuses everything would pass the test above."""
    file = secret_file(tmp_path, mode=0o640)
    settings_file("port = 9\nmetrics_port = 10", 0o644)(tmp_path)
    settings = Settings(
        host="0.0.0.0", admin_password_file=file, api_key=GOOD, database_url=SERVER, database_password_file=file
    )
    assert settings.port == 9
    assert settings.database == f"postgresql+psycopg://me:{GOOD}@db/loraplex"
    assert GOOD not in repr(settings) + repr(settings.masked())


@pytest.mark.parametrize("secret", ["lp-team-a-8f2kd", "my secret garden 7", "keyboard-Zu9!xw", "b49ad1f07c5e2d68"])
def test_a_secret_may_have_a_word_of_samples_in_it(secret: str) -> None:
    assert not setting_secrets.is_sample(secret)


def test_secrets_that_a_container_engine_mounts_may_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = secret_file(tmp_path, mode=0o444)
    with pytest.raises(ValidationError, match="chmod 600"):
        Settings(admin_password_file=file)
    monkeypatch.setattr(setting_secrets, "ENGINE_FOLDER", tmp_path)
    assert Settings(admin_password_file=file).admin_password_text == GOOD


def test_a_data_folder_that_everyone_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    prepare_data_folder(folder)
    folder.chmod(0o1777)
    with pytest.raises(ValueError, match="chmod o-w"):
        prepare_data_folder(folder)
