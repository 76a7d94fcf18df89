from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from loraplex.lora.files.manifest import HeadLinear
from loraplex.registry.base import ServedBase
from loraplex.registry.database.tables import Adapter, AdapterVersion
from loraplex.registry.errors import AdapterUnavailable, InvalidRoute, UnknownAdapter, VersionInUse
from loraplex.registry.files.sweep import sweep
from loraplex.registry.registry import Registry
from loraplex.registry.snapshot import Snapshot

from .helpers import BASE, HOSTILE_STRINGS, add, sha256, snapshot

ACTOR = "user:admin"


def version_of(view: Snapshot, model: str) -> int:
    resolved = view.resolve(model)
    assert resolved is not None
    return resolved.version


def test_every_way_to_name_a_version(registry: Registry) -> None:
    add(registry, "sql", b"one")
    add(registry, "sql", b"two")
    registry.adapters.routes.set("sql", "stable", 1, actor=ACTOR)
    view = snapshot(registry)
    versions = {"sql": 2, "sql@latest": 2, "sql@1": 1, "sql@2": 2, "sql@stable": 1, "demo:sql": 2, "demo:sql@stable": 1}
    assert {model: version_of(view, model) for model in versions} == versions
    assert view.resolve("demo") is None


def test_what_a_request_gets(registry: Registry) -> None:
    add(registry, "sql", b"one")
    resolved = snapshot(registry).resolve("sql")
    assert resolved is not None
    assert (resolved.name, resolved.digest) == ("sql", sha256(b"one"))
    assert (resolved.folder / "adapter_model.safetensors").read_bytes() == b"one"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("sq", "Did you mean `sql`"),
        ("Sql", "Did you mean `sql`"),
        ("demoo", "Did you mean `demo`"),
        ("sql@7", "versions 1 and aliases stable"),
        ("sql@prod", "versions 1 and aliases stable"),
        ("other:sql", "`other:sql` does not exist"),
    ],
)
def test_an_unknown_model_says_what_there_is(registry: Registry, model: str, message: str) -> None:
    add(registry, "sql", b"one")
    registry.adapters.routes.set("sql", "stable", 1, actor=ACTOR)
    with pytest.raises(UnknownAdapter, match=message):
        snapshot(registry).resolve(model)


def break_bytes(registry: Registry) -> None:
    (registry.store.folder(sha256(b"one")) / "adapter_config.json").unlink()
    sweep(registry.database, registry.store)


@pytest.mark.parametrize(
    ("spoil", "model", "message"),
    [
        (lambda registry: registry.adapters.set_enabled("sql", False, actor=ACTOR), "sql", "'sql' is disabled"),
        (lambda registry: registry.adapters.set_enabled("sql@1", False, actor=ACTOR), "sql@1", "Version 1 .* disabled"),
        (break_bytes, "sql", "adapter_config.json is missing .* Upload the same two files again"),
        (lambda registry: add(registry, "sql", b"two", base="e" * 64), "sql", "checked against a different base"),
    ],
)
def test_what_must_not_be_served_says_why(
    registry: Registry, spoil: Callable[[Registry], object], model: str, message: str
) -> None:
    add(registry, "sql", b"one")
    spoil(registry)
    with pytest.raises(AdapterUnavailable, match=message):
        snapshot(registry).resolve(model)
    assert snapshot(registry).servable() == []


def test_an_adapter_without_enabled_version_is_unknown(registry: Registry) -> None:
    add(registry, "sql", b"one")
    registry.adapters.set_enabled("sql@1", False, actor=ACTOR)
    with pytest.raises(UnknownAdapter, match="no enabled version"):
        snapshot(registry).resolve("sql")


def test_desired_state_has_each_digest_once_with_its_pin(registry: Registry) -> None:
    add(registry, "sql", b"one")
    add(registry, "sql", b"two")
    add(registry, "other", b"one")
    add(registry, "foreign", b"three", base="e" * 64)
    registry.adapters.set_pinned("sql", True, actor=ACTOR)
    assert desired(registry) == {sha256(b"one"): False, sha256(b"two"): True}
    registry.adapters.set_pinned("other@1", True, actor=ACTOR)
    registry.adapters.set_enabled("sql@2", False, actor=ACTOR)
    assert desired(registry) == {sha256(b"one"): True}


def desired(registry: Registry) -> dict[str, bool]:
    return {wanted.digest: wanted.pinned for wanted in snapshot(registry).desired()}


def test_a_snapshot_is_loaded_anew_only_when_something_changed(registry: Registry) -> None:
    before = snapshot(registry)
    assert not registry.snapshots.refresh()
    assert registry.snapshots.current is before
    add(registry, "sql", b"one")
    assert registry.snapshots.current is before
    assert registry.snapshots.refresh()
    assert before.of_tenant() == []
    assert [adapter.name for adapter in registry.snapshots.current.of_tenant()] == ["sql"]


def test_another_process_sees_the_change(registry: Registry, database_url: str) -> None:
    other = Registry.open(database_url, registry.store.root, BASE)
    add(registry, "sql", b"one")
    assert version_of(snapshot(other), "sql") == 1
    other.close()


def test_serving_asks_the_database_nothing(registry: Registry) -> None:
    add(registry, "sql", b"one")
    view = snapshot(registry)
    registry.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(registry.database.engine), "connect", None)
        assert version_of(view, "sql") == 1
        assert len(view.desired()) == len(view.servable()) == 1


def test_hostile_models_are_unknown_and_shown_safely(registry: Registry) -> None:
    add(registry, "sql", b"one")
    for hostile in HOSTILE_STRINGS:
        with pytest.raises(UnknownAdapter) as unknown:
            snapshot(registry).resolve(hostile)
        assert str(unknown.value).isascii()
        assert len(str(unknown.value)) < 2500


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("ab"), st.sampled_from([b"x", b"y", b"z"])),
        st.tuples(st.sampled_from(["enable", "disable", "remove"]), st.sampled_from("ab"), st.integers(1, 3)),
        st.tuples(st.just("alias"), st.sampled_from("ab"), st.integers(1, 3)),
    ),
    max_size=12,
)


class Model:
    """What the registry should do: per name number -> [bytes, enabled], the alias, the highest number."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[int, list[object]]] = {"a": {}, "b": {}}
        self.alias: dict[str, int] = {}
        self.highest = {"a": 0, "b": 0}

    def latest(self, name: str) -> int | None:
        return max((number for number, (_, enabled) in self.versions[name].items() if enabled), default=None)

    def apply(self, kind: str, name: str, argument: object) -> type[Exception] | None:
        """What it must be refused with; None: it is done."""
        versions = self.versions[name]
        if kind == "add":
            latest = self.latest(name)
            if latest is None or versions[latest][0] != argument:
                self.highest[name] += 1
                versions[self.highest[name]] = [argument, True]
            return None
        assert isinstance(argument, int)
        if argument not in versions:
            return UnknownAdapter
        if kind == "alias" and not versions[argument][1]:
            return InvalidRoute
        if kind == "disable" and self.alias.get(name) == argument and versions[argument][1]:
            return VersionInUse
        if kind == "alias":
            self.alias[name] = argument
        elif kind == "remove":
            del versions[argument]
            self.alias = {key: number for key, number in self.alias.items() if (key, number) != (name, argument)}
        else:
            versions[argument][1] = kind == "enable"
        return None

    def expected(self, name: str, selector: int | str | None) -> object:
        number = self.latest(name) if selector in (None, "latest") else selector
        number = self.alias.get(name) if selector == "stable" else number
        if number not in self.versions[name] or not self.versions[name][number][1]:
            return None
        return sha256(self.versions[name][number][0])  # type: ignore[arg-type]


def change(registry: Registry, kind: str, name: str, argument: object) -> None:
    if kind == "add":
        add(registry, name, argument)  # type: ignore[arg-type]
    elif kind == "alias":
        registry.adapters.routes.set(name, "stable", argument, actor=ACTOR)  # type: ignore[arg-type]
    elif kind == "remove":
        registry.adapters.remove(f"{name}@{argument}", actor=ACTOR)
    else:
        registry.adapters.set_enabled(f"{name}@{argument}", kind == "enable", actor=ACTOR)


def actual(view: Snapshot, name: str, selector: int | str | None) -> object:
    try:
        resolved = view.resolve(name if selector is None else f"{name}@{selector}")
    except (UnknownAdapter, AdapterUnavailable):
        return None
    assert resolved is not None
    return resolved.digest


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHANGES)
def test_any_history_resolves_as_the_model_says(registry: Registry, changes: list[tuple[str, str, object]]) -> None:
    model = Model()
    for entry in registry.adapters.list():
        registry.adapters.remove(entry.name, actor=ACTOR)
    offset = {name: highest_number(registry, name) for name in "ab"}
    for kind, name, argument in changes:
        shifted = argument + offset[name] if isinstance(argument, int) else argument
        refusal = model.apply(kind, name, argument)
        with pytest.raises(refusal) if refusal else nullcontext():
            change(registry, kind, name, shifted)
    view = snapshot(registry)
    for name in "ab":
        for selector in (None, "latest", "stable", 1, 2, 3):
            shifted = selector + offset[name] if isinstance(selector, int) else selector
            assert actual(view, name, shifted) == model.expected(name, selector)


def highest_number(registry: Registry, name: str) -> int:
    """Numbers are never reused, so a later example begins above those of the earlier ones."""
    with registry.database.read() as session:
        query = select(func.max(AdapterVersion.number)).join(Adapter).where(Adapter.name == name)
        return session.scalars(query).one() or 0


@pytest.mark.parametrize(("module", "classifies"), [("classifier", True), ("score", False), ("q_proj", False)])
def test_an_adapter_classifies_if_it_brings_the_head_of_its_base(
    registry: Registry, module: str, classifies: bool
) -> None:
    head = HeadLinear("classifier", 8, has_bias=True)
    signature = replace(BASE.signature, head_path="classifier", own_head=(head,))
    add(registry, "own", b"one", modules=("q_proj", module))
    resolved = replace(snapshot(registry), base=ServedBase("demo", signature)).resolve("own")
    assert resolved is not None and resolved.classifies is classifies
