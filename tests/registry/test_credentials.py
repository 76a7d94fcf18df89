import functools
import json
import stat
from pathlib import Path

import pytest
from pwdlib.hashers.argon2 import Argon2Hasher

from loraplex.registry.access import users
from loraplex.registry.credentials import Credentials, ensure_credentials, read_credentials
from loraplex.registry.errors import InvalidKey, WeakSecret
from loraplex.registry.registry import Registry

from .helpers import snapshot


@pytest.fixture(autouse=True)
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Argon2 at its cheapest: its price is not what these tests are about."""
    quick = functools.partial(Argon2Hasher, time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(users, "Argon2Hasher", quick)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "credentials.json"


def opens(registry: Registry, credentials: Credentials) -> bool:
    assert credentials.admin_password and credentials.api_key
    key = snapshot(registry).authenticate(credentials.api_key)
    return key.scopes == {"inference"} and registry.users.verify("admin", credentials.admin_password) is not None


def test_the_first_start_makes_both_and_keeps_them_private(registry: Registry, path: Path) -> None:
    made = ensure_credentials(registry, path)
    assert opens(registry, made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {
        "admin_user": "admin",
        "admin_password": made.admin_password,
        "api_key": made.api_key,
    }
    assert str(made.admin_password) not in repr(made)


def test_the_second_start_changes_nothing(registry: Registry, path: Path) -> None:
    made, entries = ensure_credentials(registry, path), len(registry.audit.entries())
    written = path.stat().st_mtime_ns
    assert ensure_credentials(registry, path) == made
    assert (len(registry.audit.entries()), path.stat().st_mtime_ns) == (entries, written)


def test_the_operator_sets_and_changes_them(registry: Registry, path: Path) -> None:
    first = ensure_credentials(registry, path, "correct horse", ["first-chosen-key"])
    assert (first.admin_password, first.api_key) == ("correct horse", "first-chosen-key")
    assert opens(registry, first)
    second = ensure_credentials(registry, path, "battery staple", ["second-chosen-key"])
    assert opens(registry, second)
    assert read_credentials(path) == second
    assert registry.users.verify("admin", "correct horse") is None
    with pytest.raises(InvalidKey):
        snapshot(registry).authenticate("first-chosen-key")


def test_the_operator_sets_several_keys_and_may_say_that_weak_ones_will_do(registry: Registry, path: Path) -> None:
    ensure_credentials(registry, path, api_keys=["first-chosen-key", "second-chosen-key"])
    for key in ("first-chosen-key", "second-chosen-key"):
        assert snapshot(registry).authenticate(key).name == "first key"
    ensure_credentials(registry, path)
    assert snapshot(registry).authenticate("second-chosen-key"), "a start without keys changes none"
    ensure_credentials(registry, path, api_keys=["second-chosen-key", "EMPTY"], may_be_weak=True)
    assert read_credentials(path).api_key == "second-chosen-key" and snapshot(registry).authenticate("EMPTY")
    with pytest.raises(InvalidKey):
        snapshot(registry).authenticate("first-chosen-key")


def test_a_start_that_died_before_the_database_is_taken_up(registry: Registry, path: Path) -> None:
    path.write_text('{"admin_user": "admin", "admin_password": "correct horse", "api_key": "a-key-from-the-file"}')
    taken = ensure_credentials(registry, path)
    assert (taken.admin_password, taken.api_key) == ("correct horse", "a-key-from-the-file")
    assert opens(registry, taken)


def test_what_its_owner_changed_is_not_shown_any_more(registry: Registry, path: Path) -> None:
    made = ensure_credentials(registry, path)
    registry.users.set_password("admin", "only the owner knows", actor="user:admin")
    registry.keys.revoke(registry.keys.list()[0].prefix, actor="user:admin")
    assert ensure_credentials(registry, path) == Credentials() == read_credentials(path)
    assert registry.users.verify("admin", "only the owner knows")
    with pytest.raises(InvalidKey):
        snapshot(registry).authenticate(str(made.api_key))


@pytest.mark.parametrize("given", [None, "correct horse"])
def test_an_admin_who_was_removed_while_others_stay_is_not_made_again(
    registry: Registry, path: Path, given: str | None
) -> None:
    ensure_credentials(registry, path, given)
    registry.users.create("olga", "battery staple", "admin", actor="user:admin")
    registry.users.remove("admin", actor="user:olga")
    again = ensure_credentials(registry, path, given)
    assert again.admin_password is None and read_credentials(path) == again
    assert [user.name for user in registry.users.list()] == ["olga"]
    assert [entry.action for entry in registry.audit.entries(1)] == ["user.remove"]


def test_an_admin_is_made_where_there_is_none(registry: Registry, path: Path) -> None:
    registry.users.create("eva", "battery staple", "editor", actor="cli")
    made = ensure_credentials(registry, path)
    assert made.admin_password and registry.users.verify("admin", made.admin_password)


def test_a_deleted_file_makes_no_new_logins(registry: Registry, path: Path) -> None:
    made = ensure_credentials(registry, path)
    path.unlink()
    assert ensure_credentials(registry, path) == Credentials()
    assert opens(registry, made)


def test_a_revoked_key_stays_revoked_even_if_the_operator_gives_it(registry: Registry, path: Path) -> None:
    ensure_credentials(registry, path, api_keys=["first-chosen-key"])
    registry.keys.revoke(registry.keys.list()[0].prefix, actor="user:admin")
    with pytest.raises(InvalidKey, match="revoked"):
        ensure_credentials(registry, path, api_keys=["first-chosen-key"])


@pytest.mark.parametrize(("password", "key"), [("short", None), ("", None), (None, "sk-1234"), (None, "")])
def test_weak_settings_are_refused(registry: Registry, path: Path, password: str | None, key: str | None) -> None:
    with pytest.raises(WeakSecret):
        ensure_credentials(registry, path, password, [] if key is None else [key])
    assert registry.users.get("admin") is None
    assert not path.exists()


def test_a_broken_file_is_named(registry: Registry, path: Path) -> None:
    path.write_text("{")
    with pytest.raises(ValueError, match=r"credentials\.json cannot be read"):
        ensure_credentials(registry, path)
