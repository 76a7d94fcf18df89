"""For a minute a change can be undone, unless something else has changed since."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import update

from loraplex.registry.adapters.routes import REQUEST, Guard
from loraplex.registry.adapters.rows import adapter_row
from loraplex.registry.adapters.undo import TIME, state_of
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.database.tables import Undo, utc_now
from loraplex.registry.errors import UndoRefused, UnknownAdapter
from loraplex.registry.files.sweep import sweep
from loraplex.registry.registry import Registry

from ..helpers import add, snapshot

ACTOR = "user:admin"
Change = Callable[[Registry], object]


@pytest.fixture
def routed(registry: Registry) -> Registry:
    """`sql` with three versions: the name means the first but for a tenth of the requests, `prod` the second."""
    for weights in (b"one", b"two", b"three"):
        add(registry, "sql", weights)
    routes = registry.adapters.routes
    routes.set("sql", "default", 1, {1: 90, 3: 10}, share_by=REQUEST, actor=ACTOR)
    routes.set("sql", "prod", 2, actor=ACTOR)
    routes.set_guard("sql", "default", Guard(max_error_rate=0.1), actor=ACTOR)
    return registry


def meaning(adapter: Adapter) -> object:
    """All that a change may have touched; not when it was."""
    routes = {
        name: (route.weights, route.share_by, route.previous, route.guard, route.shadow)
        for name, route in adapter.routes.items()
    }
    return adapter.enabled, [(one.number, one.enabled) for one in adapter.versions], routes


CHANGES: dict[str, Change] = {
    "alias.promote": lambda registry: registry.adapters.routes.promote("sql", "default", actor=ACTOR),
    "alias.rollback": lambda registry: registry.adapters.routes.rollback("sql", "default", actor=ACTOR),
    "alias.set": lambda registry: registry.adapters.routes.set("sql", "default", 2, actor=ACTOR),
    "alias.remove": lambda registry: registry.adapters.routes.remove("sql", "default", actor=ACTOR),
    "adapter.disable": lambda registry: registry.adapters.set_enabled("sql", False, actor=ACTOR),
    "adapter.remove": lambda registry: registry.adapters.remove("sql", actor=ACTOR),
}


@pytest.mark.parametrize("action", CHANGES)
def test_a_change_is_taken_back_whole(routed: Registry, action: str) -> None:
    before = meaning(routed.adapters.get("sql"))
    CHANGES[action](routed)
    [undoable] = snapshot(routed).undoables
    assert (undoable.adapter, undoable.action, undoable.actor) == ("sql", action, ACTOR)
    assert meaning(routed.undos.undo("sql", undoable.change, actor="user:other")) == before
    assert meaning(routed.adapters.get("sql")) == before
    entry = routed.audit.entries(1)[0]
    assert (entry.actor, entry.action, entry.detail) == ("user:other", "adapter.undo", {"undone": action, "by": ACTOR})
    with pytest.raises(UndoRefused):
        routed.undos.undo("sql", actor=ACTOR)
    assert snapshot(routed).undoables == []


def test_a_removed_adapter_comes_back_with_its_bytes_and_keys(routed: Registry) -> None:
    token = routed.keys.create("support", ["inference"], actor=ACTOR, adapters=["sql"]).token
    digest = routed.adapters.version("sql").digest
    routed.adapters.remove("sql", actor=ACTOR)
    sweep(routed.database, routed.store)
    routed.undos.undo("sql", actor=ACTOR)
    resolved = snapshot(routed).resolve("sql", only=snapshot(routed).authenticate(token).adapters)
    assert resolved and resolved.digest == digest and (resolved.folder / "adapter_model.safetensors").is_file()


def test_rolling_to_an_older_version_is_one_change(registry: Registry) -> None:
    for weights in (b"one", b"two", b"three"):
        add(registry, "sql", weights)
    before = meaning(registry.adapters.get("sql"))
    rolled = registry.adapters.roll_to("sql@1", actor=ACTOR).current()
    assert rolled and rolled.number == 1
    assert meaning(registry.undos.undo("sql", actor=ACTOR)) == before


@pytest.mark.parametrize(
    "since",
    [
        lambda registry: registry.adapters.routes.set("sql", "default", 2, actor=ACTOR),
        lambda registry: registry.adapters.routes.set_guard("sql", "default", None, actor="user:other"),
        lambda registry: registry.adapters.set_pinned("sql@2", True, actor=ACTOR),
        lambda registry: add(registry, "sql", b"four"),
    ],
)
def test_what_has_changed_since_is_not_undone(routed: Registry, since: Change) -> None:
    routed.adapters.routes.promote("sql", "default", actor=ACTOR)
    [undoable] = snapshot(routed).undoables
    since(routed)
    now = meaning(routed.adapters.get("sql"))
    with pytest.raises(UndoRefused, match="changed again since"):
        routed.undos.undo("sql", undoable.change, actor=ACTOR)
    assert meaning(routed.adapters.get("sql")) == now


def test_a_removed_name_that_is_used_again_is_not_taken_back(routed: Registry) -> None:
    routed.adapters.remove("sql", actor=ACTOR)
    add(routed, "sql", b"four")
    with pytest.raises(UndoRefused):
        routed.undos.undo("sql", actor=ACTOR)
    assert [one.number for one in routed.adapters.get("sql").versions] == [4]


def test_after_a_minute_there_is_nothing_to_undo(routed: Registry) -> None:
    routed.adapters.routes.promote("sql", "default", actor=ACTOR)
    with routed.database.write() as session:
        session.execute(update(Undo).values(at=utc_now() - TIME - timedelta(seconds=1)))
    with pytest.raises(UndoRefused, match="in the last minute"):
        routed.undos.undo("sql", actor=ACTOR)
    with pytest.raises(UnknownAdapter):
        routed.undos.undo("none", actor=ACTOR)


def test_a_guards_deed_is_nobodys_to_undo(routed: Registry) -> None:
    candidate = routed.adapters.get("sql").routes["default"].candidates[0]
    place = ("sql", "default", 3, candidate.since, "slow", {})
    assert routed.adapters.routes.trip(*place, guard=Guard(max_error_rate=0.1))
    with pytest.raises(UndoRefused):
        routed.undos.undo("sql", actor=ACTOR)


def test_every_column_of_a_route_is_put_back(routed: Registry) -> None:
    """One that is added must be put back too, or be named here."""
    with routed.database.read() as session:
        row = adapter_row(session, "sql", "default")
        told = set(state_of(row)["aliases"]["default"])
        columns = {column.key.removesuffix("_id") for column in type(row.aliases[0]).__table__.columns}
    assert columns - told == {"id", "adapter", "name", "updated_by"}
