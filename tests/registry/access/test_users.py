import pytest
from sqlalchemy import text

from loraplex.registry.errors import WeakSecret
from loraplex.registry.registry import Registry

from ..helpers import HOSTILE_STRINGS


def test_only_the_right_password_opens(registry: Registry) -> None:
    user = registry.users.set_password("admin", "correct horse", actor="system")
    assert registry.users.verify("admin", "correct horse") == user == registry.users.get("admin")
    assert registry.users.verify("admin", "correct horsE") is None
    assert registry.users.verify("nobody", "correct horse") is None


def test_a_new_password_ends_the_old_one_and_its_sessions(registry: Registry) -> None:
    before = registry.users.set_password("admin", "correct horse", actor="system")
    after = registry.users.set_password("admin", "battery staple", actor="user:admin")
    assert registry.users.verify("admin", "correct horse") is None
    assert after.password_changed_at > before.password_changed_at
    assert [entry.actor for entry in registry.audit.entries()] == ["user:admin", "system"]


def test_passwords_are_stored_as_argon2id(registry: Registry) -> None:
    registry.users.set_password("admin", "correct horse", actor="system")
    with registry.database.read() as session:
        stored = session.execute(text("SELECT password_hash FROM users")).scalar_one()
    assert stored.startswith("$argon2id$")


@pytest.mark.parametrize("password", ["", "short", " padded password", "tab\tinside"])
def test_weak_passwords_are_refused(registry: Registry, password: str) -> None:
    with pytest.raises(WeakSecret, match="at least 8 printable"):
        registry.users.set_password("admin", password, actor="system")
    assert registry.users.get("admin") is None


def test_hostile_logins_find_nobody(registry: Registry) -> None:
    registry.users.set_password("admin", "correct horse", actor="system")
    for hostile in [*HOSTILE_STRINGS, "admin'--", "admin\x00"]:
        assert registry.users.get(hostile) is None
    assert registry.users.verify("admin'--", "correct horse") is None
    assert registry.users.verify("admin", "\ud800\x00' OR 1=1") is None
