"""An alias routes weighted shares of its callers to candidates; a caller stays with its version."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from loraplex.registry.adapters.alias_rows import NEW
from loraplex.registry.adapters.promotion import PromotionRule
from loraplex.registry.adapters.routes import CALLER, REQUEST, Asker, Guard, choose
from loraplex.registry.database.tables import AdapterVersion, Artifact
from loraplex.registry.errors import (
    InvalidRoute,
    PromotionRefused,
    RouteChanged,
    UnknownAdapter,
    UnknownAlias,
    VersionInUse,
)
from loraplex.registry.registry import Registry
from loraplex.registry.revision import bump_revision

from ..helpers import add, sha256, snapshot

ACTOR = "user:admin"
CALLERS = [f"key:{number}" for number in range(1000)]


@pytest.fixture
def three(registry: Registry) -> Registry:
    """`sql` with three versions; the bare name means the third."""
    for weights in (b"one", b"two", b"three"):
        add(registry, "sql", weights)
    return registry


def versions_of(registry: Registry, model: str = "sql@prod") -> dict[str, int]:
    """Caller -> the version that answers it."""
    now = snapshot(registry)
    found = {caller: now.resolve(model, asker=Asker(caller)) for caller in CALLERS}
    return {caller: adapter.version for caller, adapter in found.items() if adapter}


def shares_of(registry: Registry, model: str = "sql@prod") -> Counter[int]:
    return Counter(versions_of(registry, model).values())


def test_callers_are_split_by_weight_and_stay(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 2, {2: 70, 3: 20, 1: 10}, actor=ACTOR)
    shares = shares_of(three)
    assert {number: round(count / 100) for number, count in shares.items()} == {2: 7, 3: 2, 1: 1}
    assert versions_of(three) == versions_of(three)
    assert {version for version in (snapshot(three).resolve("sql@prod"),) if version}.pop().version == 2


def test_a_growing_candidate_takes_callers_and_gives_none_back(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 2, {2: 90, 3: 10}, actor=ACTOR)
    before = versions_of(three)
    routes.set("sql", "prod", None, {2: 80, 3: 20}, actor=ACTOR)
    after = versions_of(three)
    moved = {caller for caller in CALLERS if before[caller] != after[caller]}
    assert all((before[caller], after[caller]) == (2, 3) for caller in moved)
    assert 60 <= len(moved) <= 140
    routes.set("sql", "prod", None, {2: 90, 3: 10}, actor=ACTOR)
    assert versions_of(three) == before


@settings(max_examples=60)
@given(st.integers(0, 99), st.integers(1, 100), st.text(max_size=20))
def test_more_weight_never_loses_a_caller(less: int, step: int, caller: str) -> None:
    more = min(100, less + step)
    if choose({1: 100 - less, 2: less}, "t/sql", caller) == 2:
        assert choose({1: 100 - more, 2: more}, "t/sql", caller) == 2


def test_none_and_all_are_exact(three: Registry) -> None:
    three.adapters.routes.set("sql", "prod", 2, {2: 0, 3: 100}, actor=ACTOR)
    assert shares_of(three) == {3: 1000}
    three.adapters.routes.set("sql", "prod", 2, {2: 100, 3: 0}, actor=ACTOR)
    assert shares_of(three) == {2: 1000}
    assert three.adapters.get("sql").routes["prod"].candidates == ()


def test_the_bare_name_goes_through_the_alias_default(three: Registry) -> None:
    assert shares_of(three, "sql") == {3: 1000}
    three.adapters.set_pinned("sql", True, actor=ACTOR)
    three.adapters.routes.set("sql", "default", 1, {1: 90, 3: 10}, actor=ACTOR)
    now, shares = snapshot(three), shares_of(three, "sql")
    assert set(shares) == {1, 3} and shares[1] > 800
    assert [(adapter.name, version.number) for adapter, version in now.servable()] == [("sql", 1)]
    pinned = {adapter.digest for adapter in now.desired() if adapter.pinned}
    assert pinned == {sha256(b"one"), sha256(b"three")}
    assert shares_of(three, "sql@latest") == {3: 1000}
    assert shares_of(three, "demo:sql") == shares
    add(three, "sql", b"four")
    assert shares_of(three, "sql") == shares, "an upload moves nothing"
    three.adapters.routes.remove("sql", "default", actor=ACTOR)
    assert shares_of(three, "sql") == {4: 1000}


def test_what_is_listed_is_what_answers(three: Registry) -> None:
    three.adapters.routes.set("sql", "default", 1, {1: 0, 3: 100}, actor=ACTOR)
    with three.database.write() as session:
        for artifact in session.scalars(select(Artifact).where(Artifact.digest == sha256(b"one"))):
            artifact.broken = "its files are gone"
        bump_revision(session)
    now = snapshot(three)
    for caller in (None, *CALLERS[:5]):
        assert [version.number for _, version in now.servable(asker=caller and Asker(caller))] == [3]
    three.adapters.routes.set("sql", "default", 2, {2: 50, 3: 50}, actor=ACTOR)
    now, answers = snapshot(three), versions_of(three, "sql")
    for caller in CALLERS[:20]:
        assert [version.number for _, version in now.servable(asker=Asker(caller))] == [answers[caller]]


def test_promotion_and_back(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 1, {1: 90, 3: 10}, actor=ACTOR)
    routes.set_shadow("sql", "prod", 3, 5, actor=ACTOR)
    promoted = routes.promote("sql", "prod", actor=ACTOR).routes["prod"]
    assert (promoted.stable, promoted.previous, promoted.candidates) == (3, 1, ())
    back = routes.rollback("sql", "prod", actor=ACTOR).routes["prod"]
    assert (back.stable, back.previous, back.candidates) == (1, 3, ())
    routes.set("sql", "prod", 1, {1: 50, 2: 50}, actor=ACTOR)
    ended = routes.rollback("sql", "prod", actor=ACTOR).routes["prod"]
    assert (ended.stable, ended.candidates) == (1, ())
    actions = [entry.action for entry in three.audit.entries()]
    assert actions[:4] == ["alias.rollback", "alias.set", "alias.rollback", "alias.promote"]


def test_rolling_back_again_changes_nothing(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 1, actor=ACTOR)
    routes.set("sql", "prod", 2, {2: 90, 3: 10}, actor=ACTOR)
    once = routes.rollback("sql", "prod", actor=ACTOR)
    assert (once.routes["prod"].stable, once.routes["prod"].candidates) == (2, ())
    generation, rows = snapshot(three).revision, len(three.audit.entries())
    for version in (None, 2):
        assert routes.rollback("sql", "prod", version, actor=ACTOR) == once
    assert (snapshot(three).revision, len(three.audit.entries())) == (generation, rows)
    further = routes.rollback("sql", "prod", 1, actor=ACTOR)
    assert (further.routes["prod"].stable, further.routes["prod"].previous) == (1, 2)
    for version in (None, 1):
        assert routes.rollback("sql", "prod", version, actor=ACTOR) == further
    with pytest.raises(InvalidRoute, match="to version 1 or 2"):
        routes.rollback("sql", "prod", 3, actor=ACTOR)
    routes.set("sql", "prod", 3, actor=ACTOR)
    assert routes.rollback("sql", "prod", actor=ACTOR).aliases == {"prod": 1}, "a new change can be taken back anew"


def test_a_route_leads_to_no_version_that_is_disabled_or_broken(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 1, actor=ACTOR)
    routes.set("sql", "prod", 2, {2: 50, 3: 50}, actor=ACTOR)
    for number in (1, 3):
        three.adapters.set_enabled(f"sql@{number}", False, actor=ACTOR)
    changes: list[Callable[[], object]] = [
        lambda: routes.set("sql", "next", 1, actor=ACTOR),
        lambda: routes.set("sql", "prod", 3, actor=ACTOR),
        lambda: routes.promote("sql", "prod", actor=ACTOR),
        lambda: routes.rollback("sql", "prod", 1, actor=ACTOR),
    ]
    before = three.adapters.get("sql")
    for change in changes:
        with pytest.raises(InvalidRoute, match=r"Version [13] is disabled\. Enable it"):
            change()
    assert three.adapters.get("sql") == before
    three.adapters.set_enabled("sql@1", True, actor=ACTOR)
    with three.database.write() as session:
        for artifact in session.scalars(select(Artifact).where(Artifact.digest == sha256(b"one"))):
            artifact.broken = "its files are gone"
    with pytest.raises(InvalidRoute, match=r"Version 1 cannot be served: its files are gone\. Upload"):
        routes.set("sql", "next", 1, actor=ACTOR)


def test_the_stable_version_of_a_route_is_not_disabled(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 2, {2: 0, 3: 100}, actor=ACTOR)
    routes.set("sql", "next", 2, actor=ACTOR)
    with pytest.raises(VersionInUse, match=r"Version 2 of 'sql' serves the callers of sql@next, sql@prod.*point"):
        three.adapters.set_enabled("sql@2", False, actor=ACTOR)
    three.adapters.set_enabled("sql@3", False, actor=ACTOR)
    assert shares_of(three) == {2: 1000}, "a candidate's callers have the stable version"
    three.adapters.set_enabled("sql", False, actor=ACTOR)
    three.adapters.set_enabled("sql", True, actor=ACTOR)
    routes.set("sql", "prod", 1, actor=ACTOR)
    routes.remove("sql", "next", actor=ACTOR)
    three.adapters.set_enabled("sql@2", False, actor=ACTOR)


def test_a_change_that_is_meant_for_another_state_changes_nothing(three: Registry) -> None:
    routes = three.adapters.routes
    first = routes.set("sql", "prod", 1, actor=ACTOR, seen=NEW).routes["prod"].etag
    now = routes.set("sql", "prod", 2, actor="user:bob", seen=first)
    changes: list[Callable[[str], object]] = [
        lambda seen: routes.set("sql", "prod", 3, actor=ACTOR, seen=seen),
        lambda seen: routes.promote("sql", "prod", actor=ACTOR, seen=seen),
        lambda seen: routes.rollback("sql", "prod", actor=ACTOR, seen=seen),
        lambda seen: routes.set_guard("sql", "prod", Guard(max_error_rate=0.1), actor=ACTOR, seen=seen),
        lambda seen: routes.set_shadow("sql", "prod", 3, 5, actor=ACTOR, seen=seen),
        lambda seen: routes.remove("sql", "prod", actor=ACTOR, seen=seen),
    ]
    for change in changes:
        with pytest.raises(RouteChanged, match="'user:bob' has changed 'sql@prod'"):
            change(first)
        with pytest.raises(RouteChanged, match="already exists and points at version 2"):
            change(NEW)
    assert three.adapters.get("sql") == now
    routes.remove("sql", "prod", actor=ACTOR, seen=now.routes["prod"].etag)
    with pytest.raises(RouteChanged, match="was removed in the meantime"):
        routes.set("sql", "prod", 3, actor=ACTOR, seen=first)
    for seen in (None, first):
        with pytest.raises(UnknownAlias, match="has no alias 'prod'"):
            routes.remove("sql", "prod", actor=ACTOR, seen=seen)


def test_the_guard_takes_a_candidate_out_once(three: Registry) -> None:
    routes = three.adapters.routes
    guard = Guard(max_error_rate=0.05)
    routes.set("sql", "prod", 1, {1: 60, 2: 30, 3: 10}, actor=ACTOR)
    route = routes.set_guard("sql", "prod", guard, actor=ACTOR).routes["prod"]
    assert route.guard == guard
    (since,) = {one.since for one in route.candidates if one.version == 3}
    generation = snapshot(three).revision
    assert routes.trip("sql", "prod", 3, since, "3 of 20 failed.", {"error_rate": 0.15}, guard=guard)
    assert not routes.trip("sql", "prod", 3, since, "3 of 20 failed.", {"error_rate": 0.15}, guard=guard)
    assert snapshot(three).revision == generation + 1
    assert set(shares_of(three)) == {1, 2}
    tripped = three.adapters.get("sql").routes["prod"]
    assert tripped.trip and (tripped.trip.version, tripped.trip.weight) == (3, 10)
    entry = three.audit.entries(1)[0]
    assert (entry.actor, entry.action, entry.subject) == ("guard", "alias.trip", "adapter:sql@prod")
    assert entry.detail["figures"] == {"error_rate": 0.15}
    again = routes.set("sql", "prod", 1, {1: 90, 3: 10}, actor=ACTOR).routes["prod"]
    assert again.trip is None and again.guard == guard
    assert again.candidates[0].since > since
    assert not routes.trip("sql", "prod", 3, since, "Old figures.", {}, guard=guard), (
        "a share given anew is judged anew"
    )
    assert not routes.trip("sql", "prod", 3, since + timedelta(1), "Other figures.", {}, guard=guard)


@pytest.mark.parametrize("changed", [None, Guard(max_error_rate=0.5)])
def test_a_guard_that_a_person_has_changed_meanwhile_takes_nobody_out(three: Registry, changed: Guard | None) -> None:
    routes, guard = three.adapters.routes, Guard(max_error_rate=0.05)
    routes.set("sql", "prod", 1, {1: 90, 3: 10}, actor=ACTOR)
    (candidate,) = routes.set_guard("sql", "prod", guard, actor=ACTOR).routes["prod"].candidates
    routes.set_guard("sql", "prod", changed, actor=ACTOR)
    assert not routes.trip("sql", "prod", 3, candidate.since, "3 of 20 failed.", {}, guard=guard)
    assert three.adapters.get("sql").routes["prod"].weights == {1: 90, 3: 10}


def test_a_candidate_that_keeps_its_share_is_not_judged_anew(three: Registry) -> None:
    routes = three.adapters.routes
    first = routes.set("sql", "prod", 1, {1: 90, 3: 10}, actor=ACTOR).routes["prod"].candidates
    second = routes.set("sql", "prod", None, {1: 80, 3: 20}, actor=ACTOR).routes["prod"].candidates
    assert (second[0].weight, second[0].since) == (20, first[0].since)


def test_a_shadow_gets_copies_and_no_callers(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 1, actor=ACTOR)
    route = routes.set_shadow("sql", "prod", "latest", 25, actor=ACTOR).routes["prod"]
    assert route.shadow and (route.shadow.version, route.shadow.shadow, route.shadow.weight) == (3, 25, 0)
    assert shares_of(three) == {1: 1000}
    moved = routes.set_shadow("sql", "prod", 2, 5, actor=ACTOR).routes["prod"]
    assert [(one.version, one.shadow) for one in moved.candidates] == [(2, 5)]
    assert routes.set_shadow("sql", "prod", None, 0, actor=ACTOR).routes["prod"].candidates == ()


def test_a_candidate_that_cannot_be_served_leaves_its_callers_to_the_stable_version(three: Registry) -> None:
    three.adapters.routes.set("sql", "prod", 1, {1: 50, 3: 50}, actor=ACTOR)
    three.adapters.set_enabled("sql@3", False, actor=ACTOR)
    assert shares_of(three) == {1: 1000}
    three.adapters.set_enabled("sql@3", True, actor=ACTOR)
    assert set(shares_of(three)) == {1, 3}


def test_removing_versions(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 1, {1: 50, 3: 50}, actor=ACTOR)
    routes.promote("sql", "prod", actor=ACTOR)
    routes.set("sql", "default", 2, {2: 50, 1: 50}, actor=ACTOR)
    three.adapters.remove("sql@1", actor=ACTOR)
    found = three.adapters.get("sql").routes
    assert (found["prod"].previous, found["default"].candidates) == (None, ())
    with pytest.raises(VersionInUse, match="'default' points 'sql' at version 2"):
        three.adapters.remove("sql@2", actor=ACTOR)
    three.adapters.remove("sql@3", actor=ACTOR)
    assert set(three.adapters.get("sql").routes) == {"default"}
    three.adapters.remove("sql", actor=ACTOR)
    add(three, "sql", b"five")
    assert three.adapters.get("sql").routes == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda routes: routes.set("sql", "prod", 1, {1: 90, 3: 5}, actor=ACTOR), "add up to 95"),
        (
            lambda routes: routes.set("sql", "prod", 1, {1: 110, 3: -10}, actor=ACTOR),
            "version 3 is -10; .* from 0 to 100",
        ),
        (lambda routes: routes.set("sql", "prod", 1, {1: 110}, actor=ACTOR), "version 1 is 110; .* from 0 to 100"),
        (lambda routes: routes.set("sql", "new", None, {1: 100}, actor=ACTOR), "is new. Name its"),
        (lambda routes: routes.promote("sql", "prod", actor=ACTOR), "Candidates: none"),
        (lambda routes: routes.rollback("sql", "prod", actor=ACTOR), "nothing to roll back"),
        (lambda routes: routes.set_guard("sql", "prod", Guard(), actor=ACTOR), "at least one limit: max_error_rate"),
        (lambda routes: routes.set_shadow("sql", "prod", 1, 5, actor=ACTOR), "serves these requests anyway"),
        (lambda routes: routes.set_shadow("sql", "prod", 2, 0, actor=ACTOR), "1 to 100 per cent"),
    ],
)
def test_routes_that_cannot_be_are_refused_in_words(
    three: Registry, change: Callable[[object], object], words: str
) -> None:
    routes = three.adapters.routes
    before = routes.set("sql", "prod", 1, actor=ACTOR), snapshot(three).revision
    with pytest.raises(InvalidRoute, match=words):
        change(routes)
    assert (three.adapters.get("sql"), snapshot(three).revision) == before


def test_what_is_not_there(three: Registry) -> None:
    routes = three.adapters.routes
    with pytest.raises(UnknownAlias, match=r"no alias 'prod'\. It has: none"):
        routes.promote("sql", "prod", actor=ACTOR)
    with pytest.raises(UnknownAdapter):
        routes.set("sql", "prod", 1, {1: 50, 7: 50}, actor=ACTOR)
    three.adapters.set_enabled("sql@2", False, actor=ACTOR)
    with pytest.raises(InvalidRoute, match="Version 2 is disabled"):
        routes.set("sql", "prod", 1, {1: 50, 2: 50}, actor=ACTOR)


def test_every_version_that_gets_callers_obeys_the_rule(three: Registry) -> None:
    class OnlyOdd(PromotionRule):
        def check(self, session: object, version: AdapterVersion) -> None:
            if version.number % 2 == 0:
                raise PromotionRefused(f"not {version.number}")

    routes = three.adapters.routes
    routes._shares._rule = OnlyOdd(0.5, lambda subject: "")
    routes.set("sql", "prod", 1, {1: 90, 3: 10}, actor=ACTOR)
    with pytest.raises(PromotionRefused, match="not 2"):
        routes.set("sql", "prod", 1, {1: 90, 2: 10}, actor=ACTOR)
    with pytest.raises(PromotionRefused, match="not 2"):
        routes.set("sql", "default", 2, actor=ACTOR)
    routes.set_shadow("sql", "prod", 2, 50, actor=ACTOR)
    assert set(shares_of(three)) == {1, 3}, "a shadow answers nobody"


def test_who_no_longer_obeys_the_rule_keeps_or_loses_callers_and_gets_no_more(three: Registry) -> None:
    class Nobody(PromotionRule):
        def check(self, session: object, version: AdapterVersion) -> None:
            raise PromotionRefused("its prompts have changed")

    routes = three.adapters.routes
    routes.set("sql", "prod", 1, {1: 50, 3: 50}, actor=ACTOR)
    routes._shares._rule = Nobody(0.5, lambda subject: "")
    for share in (50, 10):
        changed = routes.set("sql", "prod", None, {1: 100 - share, 3: share}, actor=ACTOR)
        assert changed.routes["prod"].weights == {1: 100 - share, 3: share}
    with pytest.raises(PromotionRefused, match="prompts have changed"):
        routes.set("sql", "prod", None, {1: 89, 3: 11}, actor=ACTOR)
    routes._shares._rule = None
    routes.promote("sql", "prod", actor=ACTOR)
    routes._shares._rule = Nobody(0.5, lambda subject: "")
    assert routes.rollback("sql", "prod", actor=ACTOR).aliases == {"prod": 1}, "what was served may be served again"


def test_by_request_one_caller_gets_each_version_by_its_share(three: Registry) -> None:
    routes = three.adapters.routes
    routes.set("sql", "prod", 2, {2: 90, 3: 10}, share_by=REQUEST, actor=ACTOR)
    now = snapshot(three)
    requests = [Asker("key:one", f"req-{number}") for number in range(1000)]
    found = [now.resolve("sql@prod", asker=asker) for asker in requests]
    assert 60 <= sum(adapter.version == 3 for adapter in found if adapter) <= 140
    assert found == [now.resolve("sql@prod", asker=asker) for asker in requests], "the same id, the same version"
    without = now.resolve("sql@prod", asker=Asker("key:one"))
    assert without and without.version == 2, "no request is drawn, so the stable one is meant"


def test_what_is_shared_out_stays_until_it_is_said_otherwise(three: Registry) -> None:
    routes = three.adapters.routes
    assert routes.set("sql", "prod", 2, {2: 90, 3: 10}, actor=ACTOR).routes["prod"].share_by == CALLER
    routes.set("sql", "prod", 2, {2: 80, 3: 20}, share_by=REQUEST, actor=ACTOR)
    assert routes.set("sql", "prod", 2, {2: 70, 3: 30}, actor=ACTOR).routes["prod"].share_by == REQUEST
    assert three.audit.entries(1)[0].detail == {"version": 2, "candidates": {"3": 30}, "share_by": REQUEST}
