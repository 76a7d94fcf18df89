"""`loraplex credentials show`: what the first start has made, for who may read the data folder."""

import json
import os
from pathlib import Path

import pytest

from loraplex.registry.credentials import ensure_credentials
from loraplex.registry.database.migrate import upgrade
from loraplex.registry.registry import Registry

from .typed import Run, typed


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LORAPLEX_DATA_DIR", str(tmp_path))
    return typed(monkeypatch, capsys)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """After the first start."""
    url = f"sqlite:///{tmp_path / 'loraplex.db'}"
    upgrade(url)
    registry = Registry.open(url, tmp_path / "artifacts")
    ensure_credentials(registry, tmp_path / "credentials.json")
    return registry


def test_what_the_first_start_has_made(run: Run, registry: Registry) -> None:
    told = json.loads(run("credentials", "show", "--json")[1])
    assert told["admin_user"] == "admin" and registry.users.verify("admin", told["admin_password"])
    assert registry.snapshots.current.authenticate(told["api_key"]).name == "first key"
    code, out, _ = run("credentials", "show")
    assert (code, out) == (0, f"Login  admin / {told['admin_password']}\nKey    {told['api_key']}\n")


def test_what_was_changed_since_is_not_shown(run: Run, registry: Registry) -> None:
    before = json.loads(run("credentials", "show", "--json")[1])
    registry.users.set_password("admin", "battery staple", role=None, actor="user:admin")
    [key] = registry.keys.list()
    registry.keys.revoke(key.prefix, actor="user:admin", tenant="default")
    code, out, _ = run("credentials", "show")
    assert code == 0 and before["admin_password"] not in out and before["api_key"] not in out
    assert "loraplex users password admin" in out and "loraplex keys create NAME" in out
    assert json.loads(run("credentials", "show", "--json")[1]) == {
        "admin_user": "admin",
        "admin_password": None,
        "api_key": None,
    }


def test_before_the_first_start(run: Run, tmp_path: Path) -> None:
    code, out, err = run("credentials", "show")
    assert (code, out) == (2, "") and f"no server has started on the data folder {tmp_path}" in err
    assert "loraplex serve" in err and "--data-dir" in err


def test_another_users_are_refused_in_words(run: Run, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("loraplex.web.cli.access.credentials.read_credentials", refused)
    code, out, err = run("credentials", "show")
    assert (code, out) == (2, "") and "belongs to another user" in err
