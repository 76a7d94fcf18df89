import hmac
from datetime import timedelta

import pytest
from sqlalchemy import text

from loraplex.registry.access.keys import CreatedKey
from loraplex.registry.access.quotas import Quota
from loraplex.registry.access.scopes import ADAPTERS, ADMIN, INFERENCE
from loraplex.registry.database.tables import utc_now
from loraplex.registry.errors import InvalidKey, InvalidName, RegistryError, WeakSecret
from loraplex.registry.registry import Registry

from ..helpers import HOSTILE_STRINGS, snapshot

ACTOR = "user:admin"


def create(registry: Registry, *scopes: str) -> CreatedKey:
    return registry.keys.create("notebook", scopes or [INFERENCE], actor=ACTOR)


def test_a_key_opens_what_its_scopes_say(registry: Registry) -> None:
    created = create(registry, INFERENCE)
    key = snapshot(registry).authenticate(created.token)
    assert key == created.key
    assert (key.tenant, key.created_by, key.allows(INFERENCE), key.allows(ADAPTERS)) == ("default", ACTOR, True, False)
    assert create(registry, ADMIN).key.allows(ADAPTERS)


def test_the_token_is_nowhere_in_the_database(registry: Registry) -> None:
    token = create(registry).token
    secret = token.partition("_")[2]
    with registry.database.read() as session:
        rows = [*session.execute(text("SELECT * FROM api_keys")), *session.execute(text("SELECT * FROM audit"))]
    assert rows
    assert all(secret not in str(value) for row in rows for value in row)
    assert secret not in repr(snapshot(registry)) + repr(create(registry))


def test_the_token_names_its_prefix(registry: Registry) -> None:
    created = create(registry)
    assert created.token.startswith(f"lp-{created.key.prefix}_")


def test_a_token_must_match_to_the_last_character(registry: Registry) -> None:
    token = create(registry).token
    view = snapshot(registry)
    for wrong in (token[:-1], token + "x", token[:-1] + ("a" if token[-1] != "a" else "b"), token.upper(), f" {token}"):
        with pytest.raises(InvalidKey, match="Incorrect API key"):
            view.authenticate(wrong)


def test_comparison_is_constant_time(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known prefix, unknown prefix: one compare_digest over 64 digits each."""
    token, original = create(registry).token, hmac.compare_digest
    compared: list[tuple[int, int]] = []

    def compare(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return original(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    view = snapshot(registry)
    view.authenticate(token)
    with pytest.raises(InvalidKey):
        view.authenticate("lp-000000000000_secret")
    assert compared == [(64, 64)] * 2


def test_a_revoked_key_opens_nothing(registry: Registry) -> None:
    created = create(registry)
    revoked = registry.keys.revoke(created.key.prefix, actor=ACTOR)
    assert revoked.revoked_at is not None
    with pytest.raises(InvalidKey):
        snapshot(registry).authenticate(created.token)
    assert registry.keys.revoke(created.key.prefix, actor=ACTOR) == revoked
    assert [entry.action for entry in registry.audit.entries()] == ["key.revoke", "key.create"]


def test_an_expired_key_says_when(registry: Registry) -> None:
    past = utc_now() - timedelta(seconds=1)
    created = registry.keys.create("old", [INFERENCE], actor=ACTOR, expires_at=past)
    with pytest.raises(InvalidKey, match=f"expired on {past:%Y-%m-%d}"):
        snapshot(registry).authenticate(created.token)
    future = utc_now() + timedelta(hours=1)
    valid = registry.keys.create("new", [INFERENCE], actor=ACTOR, expires_at=future)
    assert snapshot(registry).authenticate(valid.token).expires_at == future


def test_the_operator_may_choose_the_token(registry: Registry) -> None:
    created = registry.keys.create("chosen", [INFERENCE], actor="system", token="my own long token?".replace(" ", "-"))
    assert snapshot(registry).authenticate("my-own-long-token?") == created.key
    with pytest.raises(InvalidKey, match="already exists"):
        registry.keys.create("again", [INFERENCE], actor="system", token=created.token)


@pytest.mark.parametrize("token", ["", "sk-1234", "has a space in it", "ümlaut-lang-genug", "line\nbreak-enough"])
def test_weak_tokens_are_refused(registry: Registry, token: str) -> None:
    with pytest.raises(WeakSecret):
        registry.keys.create("weak", [INFERENCE], actor="system", token=token)


@pytest.mark.parametrize("scopes", [[], ["root"], [INFERENCE, "root"]])
def test_unknown_scopes_are_refused(registry: Registry, scopes: list[str]) -> None:
    with pytest.raises(RegistryError, match="inference, adapters, admin"):
        registry.keys.create("key", scopes, actor=ACTOR)


def test_use_is_noted_without_a_new_generation(registry: Registry) -> None:
    created, before = create(registry), snapshot(registry).revision
    moment = utc_now()
    registry.keys.record_use({created.key.prefix: moment, "0" * 12: moment})
    assert [key.last_used_at for key in registry.keys.list()] == [moment]
    assert snapshot(registry).revision == before


def test_another_tenant_cannot_revoke(registry: Registry) -> None:
    created = create(registry)
    with pytest.raises(InvalidKey):
        registry.keys.revoke(created.key.prefix, actor=ACTOR, tenant="other")
    assert registry.keys.list("other") == []


@pytest.mark.parametrize("form", ["{}", "lp-{}_x", "lp-{prefix}_{}", "{token}{} "])
def test_hostile_tokens_open_nothing(registry: Registry, form: str) -> None:
    created = create(registry)
    view = snapshot(registry)
    for hostile in HOSTILE_STRINGS:
        with pytest.raises(InvalidKey):
            view.authenticate(form.format(hostile, prefix=created.key.prefix, token=created.token))


def test_hostile_prefixes_revoke_nothing(registry: Registry) -> None:
    created = create(registry)
    for hostile in HOSTILE_STRINGS:
        with pytest.raises(InvalidKey):
            registry.keys.revoke(hostile, actor=ACTOR)
    assert registry.keys.list() == [created.key]


def test_hostile_names_are_kept_as_they_are_or_refused(registry: Registry) -> None:
    kept = []
    for hostile in HOSTILE_STRINGS:
        try:
            kept.append(registry.keys.create(hostile, [INFERENCE], actor=ACTOR).key)
        except InvalidName:
            assert not hostile.isprintable() or not 0 < len(hostile) <= 100
    assert "'; DROP TABLE adapters; --" in [key.name for key in kept]
    assert registry.keys.list() == kept[::-1]


def test_what_is_not_given_stays_and_none_takes_a_limit_away(registry: Registry) -> None:
    expires_at, prefix = utc_now() + timedelta(days=3), create(registry).key.prefix
    changed = registry.keys.change(prefix, actor=ACTOR, expires_at=expires_at, adapters=["sql"])
    assert (changed.expires_at, changed.adapters) == (expires_at, {"sql"})
    changed = registry.keys.change(prefix, actor=ACTOR, quota=Quota(max_concurrent=2))
    assert (changed.expires_at, changed.adapters, changed.quota.max_concurrent) == (expires_at, {"sql"}, 2)
    changed = registry.keys.change(prefix, actor=ACTOR, expires_at=None, adapters=None)
    assert (changed.expires_at, changed.adapters, changed.quota.max_concurrent) == (None, None, 2)
    actions = [entry.action for entry in registry.audit.entries()]
    assert actions == ["key.expire", "key.adapters", "key.limit", "key.expire", "key.adapters", "key.create"]


def test_names_are_those_of_the_tenants_keys_revoked_ones_too(registry: Registry) -> None:
    prefix = create(registry).key.prefix
    registry.tenants.create("acme", actor=ACTOR)
    registry.keys.create("theirs", [INFERENCE], actor=ACTOR, tenant="acme")
    registry.keys.revoke(prefix, actor=ACTOR)
    assert registry.keys.names() == {prefix: "notebook"}
