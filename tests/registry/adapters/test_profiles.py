"""Serving profiles: kept by content, a version's own, taken over by the next one, seen by every process."""

from pathlib import Path

import pytest
from sqlalchemy import event, func, select

from loraplex.registry.adapters.profiles import MAX_BYTES, ServingProfile
from loraplex.registry.database.tables import ServingProfile as Row
from loraplex.registry.errors import InvalidName, InvalidProfile, UnknownAdapter
from loraplex.registry.registry import Registry

from ..helpers import BASE, HOSTILE_STRINGS, add, snapshot

ACTOR = "user:admin"
WHOLE = ServingProfile(
    system_prompt="Answer in SQL.\r\n\ttab, \x00, Zürich 😀 <b>'\"",
    chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
    temperature=0.0,
    top_p=0.9,
    top_k=-1,
    min_p=0.05,
    presence_penalty=-2.0,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    seed=-(2**63),
    stop=["\n\n", "###"],
    max_tokens=64,
    max_tokens_limit=256,
    json_schema={"type": "object", "properties": {"b": {"const": "ü\x00"}, "a": {"maximum": 10**30}}},
    tool_call_parser="hermes",
    reasoning_parser="think",
)
BRIEF = ServingProfile(system_prompt="Be brief.")


def put(registry: Registry, reference: str, profile: ServingProfile | None, tenant: str = "default") -> None:
    registry.profiles.set(reference, profile, actor=ACTOR, tenant=tenant)


def served(registry: Registry, model: str, tenant: str = "default") -> ServingProfile | None:
    resolved = snapshot(registry).resolve(model, tenant)
    assert resolved is not None
    return resolved.profile


def rows(registry: Registry) -> int:
    with registry.database.read() as session:
        return session.scalars(select(func.count()).select_from(Row)).one()


def test_every_field_comes_back_as_it_was(registry: Registry) -> None:
    assert all(getattr(WHOLE, field) is not None for field in ServingProfile.__struct_fields__)
    add(registry, "sql", b"one")
    assert registry.profiles.get("sql")[1] is None is served(registry, "sql")
    before = snapshot(registry).revision
    put(registry, "sql", WHOLE)
    assert registry.profiles.get("sql")[1] == WHOLE == served(registry, "sql")
    assert snapshot(registry).revision > before
    put(registry, "sql", None)
    assert registry.profiles.get("sql")[1] is None is served(registry, "sql")


def test_the_members_of_a_schema_keep_their_order(registry: Registry) -> None:
    add(registry, "sql", b"one")
    for names in ("ba", "ab"):
        put(registry, "sql", ServingProfile(json_schema={"properties": {name: {} for name in names}}))
        found = served(registry, "sql")
        assert found is not None and found.json_schema is not None
        assert "".join(found.json_schema["properties"]) == names


def test_changes_are_audited_without_the_texts(registry: Registry) -> None:
    add(registry, "sql", b"one")
    put(registry, "sql", BRIEF)
    put(registry, "sql@1", None)
    cleared, made, *_ = registry.audit.entries()
    assert (made.actor, made.action, made.subject, made.tenant) == (ACTOR, "profile.set", "adapter:sql@1", "default")
    assert made.detail == {"digest": BRIEF.digest, "fields": ["system_prompt"]}
    assert (cleared.action, cleared.subject) == ("profile.clear", "adapter:sql@1")
    assert registry.audit.verify().problem is None


def test_going_back_to_a_version_goes_back_to_its_profile(registry: Registry) -> None:
    for weights in (b"one", b"two"):
        add(registry, "sql", weights)
    put(registry, "sql@1", BRIEF)
    put(registry, "sql", WHOLE)
    registry.adapters.routes.set("sql", "prod", 1, actor=ACTOR)
    assert {model: served(registry, model) for model in ("sql", "sql@2", "sql@1", "sql@prod")} == {
        "sql": WHOLE,
        "sql@2": WHOLE,
        "sql@1": BRIEF,
        "sql@prod": BRIEF,
    }
    registry.adapters.set_enabled("sql@2", False, actor=ACTOR)
    assert served(registry, "sql") == BRIEF
    put(registry, "sql@prod", None)
    assert served(registry, "sql@1") is None
    assert registry.profiles.get("sql@2")[1] == WHOLE


def test_a_new_version_begins_with_the_profile_of_the_one_before(registry: Registry) -> None:
    add(registry, "sql", b"one")
    put(registry, "sql", BRIEF)
    add(registry, "sql", b"two")
    assert served(registry, "sql@2") == BRIEF
    put(registry, "sql@2", WHOLE)
    registry.adapters.set_enabled("sql@2", False, actor=ACTOR)
    add(registry, "sql", b"three")
    assert served(registry, "sql@3") == BRIEF, "that of the version that the name meant"
    for version in ("sql@1", "sql@3"):
        registry.adapters.set_enabled(version, False, actor=ACTOR)
    add(registry, "sql", b"four")
    assert served(registry, "sql") == BRIEF, "where the name meant none: that of the newest"
    assert not add(registry, "sql", b"four").created
    assert served(registry, "sql") == BRIEF


def test_a_candidate_passes_no_profile_on(registry: Registry) -> None:
    for weights in (b"one", b"two"):
        add(registry, "sql", weights)
    registry.adapters.routes.set("sql", "default", 1, actor=ACTOR)
    put(registry, "sql", BRIEF)
    put(registry, "sql@2", WHOLE)
    add(registry, "sql", b"three")
    assert served(registry, "sql@1") == BRIEF == served(registry, "sql@3")


def test_a_name_that_is_used_again_begins_without(registry: Registry) -> None:
    add(registry, "sql", b"one")
    put(registry, "sql", BRIEF)
    registry.adapters.remove("sql", actor=ACTOR)
    with pytest.raises(UnknownAdapter):
        registry.profiles.get("sql")
    add(registry, "sql", b"one")
    assert served(registry, "sql") is None


def test_a_profile_is_kept_as_long_as_a_version_has_it(registry: Registry) -> None:
    for name in ("sql", "json"):
        add(registry, name, name.encode())
        put(registry, name, BRIEF)
    put(registry, "sql", BRIEF)
    assert rows(registry) == 1
    for number in range(5):
        put(registry, "sql", ServingProfile(seed=number))
    assert rows(registry) == 2
    assert served(registry, "json") == BRIEF
    put(registry, "sql", None)
    put(registry, "json", None)
    assert rows(registry) == 0


def test_tenants_have_their_own(registry: Registry) -> None:
    registry.tenants.create("acme", actor="system")
    add(registry, "sql", b"one")
    add(registry, "sql", b"one", tenant="acme")
    put(registry, "sql", BRIEF, "acme")
    assert served(registry, "sql") is None
    assert served(registry, "sql", "acme") == BRIEF
    with pytest.raises(UnknownAdapter):
        put(registry, "json", BRIEF, "acme")


def test_another_process_sees_the_change_and_reads_what_it_lacks(
    registry: Registry, database_url: str, tmp_path: Path
) -> None:
    other = Registry.open(database_url, tmp_path / "artifacts", BASE, free_floor=0)
    add(registry, "sql", b"one")
    put(registry, "sql", BRIEF)
    assert served(other, "sql") == BRIEF
    asked: list[str] = []
    event.listen(other.database.engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    put(registry, "sql", WHOLE)
    held = other.snapshots.current.resolve("sql")
    assert served(other, "sql") == WHOLE
    assert held is not None and held.profile == BRIEF, "what a request began with does not change"
    assert sum("serving_profiles" in statement for statement in asked) == 1
    registry.adapters.set_pinned("sql", True, actor=ACTOR)
    assert served(other, "sql") == WHOLE
    assert sum("serving_profiles" in statement for statement in asked) == 1
    other.close()


@pytest.mark.parametrize(
    ("profile", "field", "words"),
    [
        (ServingProfile(), None, "The profile is empty"),
        (ServingProfile(system_prompt="x" * (1 << 20)), "system_prompt", "at most 32,768 bytes"),
        (ServingProfile(system_prompt="ü" * (16 << 10) + "x"), "system_prompt", "got 32,769"),
        (ServingProfile(chat_template="x" * 65537), "chat_template", "at most 65,536 bytes"),
        (ServingProfile(system_prompt="\ud800"), "system_prompt", "text"),
    ],
    ids=["empty", "1 MB", "bytes, not characters", "template", "no text"],
)
def test_what_cannot_be_kept_is_refused(
    registry: Registry, profile: ServingProfile, field: str | None, words: str
) -> None:
    add(registry, "sql", b"one")
    put(registry, "sql", BRIEF)
    with pytest.raises(InvalidProfile, match=words) as refused:
        put(registry, "sql", profile)
    assert refused.value.field == field
    assert registry.profiles.get("sql")[1] == BRIEF


def test_the_largest_that_is_allowed(registry: Registry) -> None:
    add(registry, "sql", b"one")
    texts = {field: "ü" * (limit // 2) for field, limit in MAX_BYTES.items() if field != "json_schema"}
    schema = {"const": "ü" * ((MAX_BYTES["json_schema"] - len('{"const": ""}')) // 2)}
    profile = ServingProfile(**texts, json_schema=schema)
    put(registry, "sql", profile)
    assert served(registry, "sql") == profile


def test_hostile_references_find_nothing(registry: Registry) -> None:
    add(registry, "sql", b"one")
    for reference in (*HOSTILE_STRINGS, "sql@2", "sql@prod"):
        with pytest.raises((InvalidName, UnknownAdapter)):
            put(registry, reference, BRIEF)
        with pytest.raises((InvalidName, UnknownAdapter)):
            registry.profiles.get(reference)
    assert rows(registry) == 0
