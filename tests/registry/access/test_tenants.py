"""Tenants, their users and sessions, on both databases."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from loraplex.registry.access.tenants import TenantCounts
from loraplex.registry.access.users import User
from loraplex.registry.errors import (
    InvalidKey,
    InvalidName,
    LastAdmin,
    NameTaken,
    RegistryError,
    TenantDisabled,
    UnknownTenant,
    UnknownUser,
)
from loraplex.registry.registry import Registry

from ..helpers import HOSTILE_STRINGS, add, snapshot

BY = "user:admin"
PASSWORD = "correct horse"
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def quick_passwords(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from pwdlib import PasswordHash
    from pwdlib.hashers.argon2 import Argon2Hasher

    quick = PasswordHash((Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1),))
    monkeypatch.setattr(registry.users, "_passwords", quick)


def test_tenants_are_made_once_and_listed(registry: Registry) -> None:
    made = registry.tenants.create("acme", actor=BY)
    assert [tenant.name for tenant in registry.tenants.list()] == ["acme", "default"]
    assert registry.tenants.get("acme") == made
    with pytest.raises(NameTaken):
        registry.tenants.create("acme", actor=BY)
    for hostile in [*HOSTILE_STRINGS, "Acme", "a/b"]:
        with pytest.raises(InvalidName):
            registry.tenants.create(hostile, actor=BY)
        with pytest.raises(UnknownTenant):
            registry.tenants.get(hostile)
    assert [entry.action for entry in registry.audit.entries()] == ["tenant.create"]


def test_a_disabled_tenant_opens_and_serves_nothing_until_it_is_enabled(registry: Registry) -> None:
    registry.tenants.create("acme", actor=BY)
    token = registry.keys.create("key", ["inference"], actor=BY, tenant="acme").token
    user = registry.users.create("bob", PASSWORD, "editor", actor=BY, tenant="acme")
    session = registry.sessions.begin(user, HOUR)
    assert session is not None
    add(registry, "sql", b"theirs", tenant="acme")
    add(registry, "sql", b"ours")
    assert len(snapshot(registry).desired()) == 2
    registry.tenants.set_disabled("acme", True, actor=BY)
    view = snapshot(registry)
    with pytest.raises(InvalidKey, match="tenant 'acme' of this API key is disabled"):
        view.authenticate(token)
    assert (len(view.desired()), registry.sessions.find(session)) == (1, None)
    with pytest.raises(TenantDisabled, match="The tenant 'acme' is disabled"):
        registry.sessions.begin(user, HOUR)
    registry.tenants.set_disabled("acme", False, actor=BY)
    assert snapshot(registry).authenticate(token).tenant == "acme"
    assert (len(snapshot(registry).desired()), registry.sessions.find(session)) == (2, user)


def test_the_operators_tenant_stays(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="operates this server"):
        registry.tenants.set_disabled("default", True, actor=BY)


def test_a_name_is_somebody_else_in_another_tenant(registry: Registry) -> None:
    registry.tenants.create("acme", actor=BY)
    ours = registry.users.create("bob", PASSWORD, "viewer", actor=BY)
    theirs = registry.users.create("bob", "battery staple", "admin", actor=BY, tenant="acme")
    assert registry.users.verify("bob", PASSWORD) == ours
    assert registry.users.verify("bob", PASSWORD, "acme") is None
    assert registry.users.verify("bob", "battery staple", "acme") == theirs
    assert registry.users.list("acme") == [theirs]
    with pytest.raises(NameTaken):
        registry.users.create("bob", PASSWORD, "viewer", actor=BY)
    registry.users.create("eve", PASSWORD, "admin", actor=BY, tenant="acme")
    registry.users.remove("bob", actor=BY, tenant="acme")
    assert registry.users.get("bob") == ours


@pytest.mark.parametrize("role", ["root", "", "Admin"])
def test_there_are_three_roles(registry: Registry, role: str) -> None:
    with pytest.raises(RegistryError, match="viewer, editor, admin"):
        registry.users.create("bob", PASSWORD, role, actor=BY)


def test_the_last_admin_stays(registry: Registry) -> None:
    registry.users.create("ann", PASSWORD, "admin", actor=BY)
    for lose in (registry.users.remove, lambda name, actor: registry.users.set_role(name, "viewer", actor=actor)):
        with pytest.raises(LastAdmin):
            lose("ann", actor=BY)
    registry.users.create("bob", PASSWORD, "admin", actor=BY)
    assert registry.users.set_role("ann", "viewer", actor=BY).role == "viewer"


def begun(registry: Registry, user: User) -> str:
    token = registry.sessions.begin(user, HOUR)
    assert token is not None
    return token


def test_sessions_end_by_logout_password_removal_and_time(registry: Registry) -> None:
    registry.users.create("admin", PASSWORD, "admin", actor=BY)
    user = registry.users.create("bob", PASSWORD, "editor", actor=BY)
    first, second = begun(registry, user), begun(registry, user)
    registry.sessions.end(first)
    assert (registry.sessions.find(first), registry.sessions.find(second)) == (None, user)
    assert registry.users.set_role("bob", "viewer", actor=BY) == registry.sessions.find(second)
    changed = registry.users.set_password("bob", "battery staple", actor=BY)
    assert (registry.sessions.find(second), registry.sessions.begin(user, HOUR)) == (None, None)
    third, over = begun(registry, changed), registry.sessions.begin(changed, timedelta(0))
    assert over is not None
    assert (registry.sessions.find(third), registry.sessions.find(over)) == (changed, None)
    registry.users.remove("bob", actor=BY)
    assert registry.sessions.find(third) is None


def test_a_cookie_is_nowhere_in_the_database(registry: Registry) -> None:
    token = begun(registry, registry.users.create("bob", PASSWORD, "editor", actor=BY))
    with registry.database.read() as session:
        rows = session.execute(text("SELECT * FROM sessions")).all()
    assert len(rows) == 1
    assert token not in str(rows)
    for hostile in HOSTILE_STRINGS:
        assert registry.sessions.find(hostile) is None


def test_tenants_are_counted_without_what_is_gone(registry: Registry) -> None:
    registry.tenants.create("acme", actor=BY)
    for name in ("one", "two"):
        add(registry, name, name.encode(), tenant="acme")
    registry.adapters.remove("one", actor=BY, tenant="acme")
    prefix = registry.keys.create("key", ["inference"], actor=BY, tenant="acme").key.prefix
    registry.users.create("bob", PASSWORD, "editor", actor=BY, tenant="acme")
    assert registry.tenants.counts() == {"acme": TenantCounts(1, 1, 1), "default": TenantCounts()}
    registry.keys.revoke(prefix, actor=BY, tenant="acme")
    assert registry.tenants.counts()["acme"] == TenantCounts(1, 0, 1)


def test_a_password_makes_no_user_where_none_was_meant(registry: Registry) -> None:
    with pytest.raises(UnknownUser):
        registry.users.set_password("bob", PASSWORD, role=None, actor=BY)
    assert registry.users.list() == []
