from collections.abc import Callable

import pytest
from sqlalchemy import text

from loraplex.registry.adapters.adapters import Adapters
from loraplex.registry.errors import InvalidName, PreflightRefused, RegistryError, UnknownAdapter, UploadMissing
from loraplex.registry.files.artifacts import Blob
from loraplex.registry.registry import Registry
from loraplex.registry.report import Finding, Report

from ..helpers import CONFIG, FINGERPRINT, HOSTILE_STRINGS, add, passing_report, put, sha256, snapshot

ACTOR = "user:admin"


def generation(registry: Registry) -> int:
    return snapshot(registry).revision


def test_the_first_upload_is_version_one(registry: Registry) -> None:
    added = add(registry, "sql", b"one")
    assert (added.created, added.version.number, added.version.digest) == (True, 1, sha256(b"one"))
    assert registry.adapters.get("sql").versions == (added.version,)
    assert registry.adapters.report("sql") == passing_report(sha256(b"one"))
    assert (registry.store.folder(added.version.digest) / "adapter_model.safetensors").read_bytes() == b"one"


def test_the_same_bytes_again_are_the_same_version(registry: Registry) -> None:
    first, again = add(registry, "sql", b"one"), add(registry, "sql", b"one")
    assert again.version == first.version
    assert not again.created


def test_other_bytes_are_the_next_version(registry: Registry) -> None:
    numbers = [add(registry, "sql", weights).version.number for weights in (b"one", b"two", b"one")]
    assert numbers == [1, 2, 3]
    assert registry.adapters.get("sql").latest() == add(registry, "sql", b"one").version


def test_the_same_bytes_for_another_base_are_a_new_version(registry: Registry) -> None:
    add(registry, "sql", b"one", base="e" * 64)
    assert add(registry, "sql", b"one").version.number == 2


def test_two_names_may_share_bytes(registry: Registry) -> None:
    assert add(registry, "sql", b"one").version.digest == add(registry, "other", b"one").version.digest
    registry.adapters.remove("sql", actor=ACTOR)
    assert [wanted.digest for wanted in snapshot(registry).desired()] == [sha256(b"one")]


def test_what_failed_preflight_is_refused_and_audited(registry: Registry) -> None:
    report = Report([Finding("shapes", "fail", "Rank 0 is no rank.", "Train with r of at least 1.")])
    config, weights = put(registry.store, CONFIG), put(registry.store, b"one")
    with pytest.raises(PreflightRefused, match=r"Rank 0 is no rank\. Train with r") as refused:
        registry.adapters.add_version("sql", config, weights, report, base_fingerprint=FINGERPRINT, actor=ACTOR)
    assert refused.value.report == report
    assert registry.adapters.list() == []
    (entry,) = registry.audit.entries(tenant="default")
    assert (entry.action, entry.detail) == ("adapter.refuse", {"failed": ["shapes"]})


def test_registering_bytes_that_were_never_uploaded_leaves_no_row(registry: Registry) -> None:
    nowhere = Blob("0" * 64, 3)
    with pytest.raises(UploadMissing):
        registry.adapters.add_version(
            "sql", nowhere, nowhere, passing_report("a" * 64), base_fingerprint=FINGERPRINT, actor=ACTOR
        )
    assert registry.adapters.list() == []


@pytest.mark.parametrize("name", ["SQL", "sql@1", "../sql", "", "a" * 64])
def test_a_bad_name_is_refused(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidName):
        add(registry, name, b"one")


def test_the_name_of_the_base_is_taken(registry: Registry) -> None:
    with pytest.raises(InvalidName, match="name of the base model"):
        add(registry, "demo", b"one")


def test_disabling_a_version_serves_the_one_before(registry: Registry) -> None:
    add(registry, "sql", b"one")
    add(registry, "sql", b"two")
    registry.adapters.set_enabled("sql@2", False, actor=ACTOR)
    assert registry.adapters.get("sql").latest() == registry.adapters.get("sql").versions[0]
    registry.adapters.set_enabled("sql@2", True, actor=ACTOR)
    assert registry.adapters.get("sql").latest() == registry.adapters.get("sql").versions[1]


def test_an_alias_moves(registry: Registry) -> None:
    add(registry, "sql", b"one")
    add(registry, "sql", b"two")
    assert registry.adapters.routes.set("sql", "stable", 1, actor=ACTOR).aliases == {"stable": 1}
    assert registry.adapters.routes.set("sql", "stable", "latest", actor=ACTOR).aliases == {"stable": 2}
    assert registry.adapters.routes.set("sql", "canary", "stable", actor=ACTOR).aliases == {"canary": 2, "stable": 2}
    assert registry.adapters.routes.remove("sql", "stable", actor=ACTOR).aliases == {"canary": 2}


def test_removing_a_version_takes_its_aliases(registry: Registry) -> None:
    add(registry, "sql", b"one")
    add(registry, "sql", b"two")
    registry.adapters.routes.set("sql", "stable", 1, actor=ACTOR)
    registry.adapters.remove("sql@stable", actor=ACTOR)
    adapter = registry.adapters.get("sql")
    assert ([version.number for version in adapter.versions], adapter.aliases) == ([2], {})


def test_an_adapter_goes_with_its_last_version_and_its_numbers_are_not_reused(registry: Registry) -> None:
    add(registry, "sql", b"one")
    registry.adapters.set_enabled("sql", False, actor=ACTOR)
    registry.adapters.remove("sql@1", actor=ACTOR)
    with pytest.raises(UnknownAdapter):
        registry.adapters.get("sql")
    added = add(registry, "sql", b"one")
    assert added.version.number == 2
    assert registry.adapters.get("sql").enabled


def test_removal_keeps_the_bytes_for_running_requests(registry: Registry) -> None:
    digest = add(registry, "sql", b"one").version.digest
    registry.adapters.remove("sql", actor=ACTOR)
    assert (registry.store.folder(digest) / "adapter_model.safetensors").exists()


def test_each_change_bumps_the_generation_and_is_audited(registry: Registry) -> None:
    adapters, seen = registry.adapters, generation(registry)
    add(registry, "sql", b"one")
    for change in (
        lambda: adapters.set_enabled("sql@1", False, actor=ACTOR),
        lambda: adapters.set_enabled("sql@1", True, actor=ACTOR),
        lambda: adapters.set_pinned("sql", True, actor=ACTOR),
        lambda: adapters.routes.set("sql", "stable", 1, actor=ACTOR),
        lambda: adapters.routes.remove("sql", "stable", actor=ACTOR),
        lambda: adapters.remove("sql", actor="key:abc"),
    ):
        change()
        assert generation(registry) > seen
        seen = generation(registry)
    entries = registry.audit.entries()
    assert [entry.action for entry in reversed(entries)] == [
        "adapter.add",
        "adapter.disable",
        "adapter.enable",
        "adapter.pin",
        "alias.set",
        "alias.remove",
        "adapter.remove",
    ]
    assert (entries[0].actor, entries[0].subject) == ("key:abc", "adapter:sql")
    assert registry.audit.entries(limit=2, before=entries[2].id) == entries[3:5]


def test_a_refused_change_changes_nothing(registry: Registry) -> None:
    add(registry, "sql", b"one")
    before = generation(registry)
    for change in (
        lambda: registry.adapters.remove("sqll", actor=ACTOR),
        lambda: registry.adapters.routes.set("sql", "stable", 7, actor=ACTOR),
        lambda: registry.adapters.set_pinned("sql@nope", True, actor=ACTOR),
    ):
        with pytest.raises(UnknownAdapter):
            change()
    assert generation(registry) == before
    assert len(registry.audit.entries()) == 1


def test_an_unknown_name_comes_with_the_nearest(registry: Registry) -> None:
    add(registry, "sql-bot", b"one")
    with pytest.raises(UnknownAdapter, match="Did you mean 'sql-bot'") as unknown:
        registry.adapters.get("sql-bt")
    assert unknown.value.nearest == ("sql-bot",)


def test_tenants_do_not_see_each_other(registry: Registry) -> None:
    with registry.database.write() as session:
        session.execute(text("INSERT INTO tenants (name, created_at) VALUES ('other', CURRENT_TIMESTAMP)"))
    add(registry, "sql", b"one", tenant="other")
    assert registry.adapters.list() == []
    with pytest.raises(UnknownAdapter):
        registry.adapters.get("sql")
    assert add(registry, "sql", b"two").version.number == 1
    assert [adapter.tenant for adapter in registry.adapters.list("other")] == ["other"]
    with pytest.raises(RegistryError, match="no tenant 'nobody'"):
        add(registry, "sql", b"one", tenant="nobody")


@pytest.mark.parametrize(
    "operate",
    [
        lambda adapters, hostile: adapters.get(hostile),
        lambda adapters, hostile: adapters.report(hostile),
        lambda adapters, hostile: adapters.remove(hostile, actor=ACTOR),
        lambda adapters, hostile: adapters.set_enabled(hostile, False, actor=ACTOR),
        lambda adapters, hostile: adapters.routes.set("sql", hostile, 1, actor=ACTOR),
        lambda adapters, hostile: adapters.routes.set("sql", "stable", hostile, actor=ACTOR),
        lambda adapters, hostile: adapters.check_name(hostile),
    ],
    ids=["get", "report", "remove", "set_enabled", "set_alias", "set_alias to", "check_name"],
)
def test_hostile_references_are_refused(registry: Registry, operate: Callable[[Adapters, str], object]) -> None:
    add(registry, "sql", b"one")
    for hostile in HOSTILE_STRINGS:
        with pytest.raises(RegistryError):
            operate(registry.adapters, hostile)
    assert [adapter.name for adapter in registry.adapters.list()] == ["sql"]
