"""A new version is inactive, has a share, or is live, as its upload says."""

import pytest

from loraplex.registry.adapters.activation import Activation
from loraplex.registry.adapters.promotion import PromotionRule
from loraplex.registry.adapters.route_shares import RouteShares
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.errors import InvalidRoute, PromotionRefused
from loraplex.registry.registry import Registry

from ..helpers import add

ACTOR = "user:admin"
INACTIVE, LIVE, SHARE = Activation("inactive"), Activation("live"), Activation("share", 20, "caller")


def weights(adapter: Adapter) -> tuple[dict[int, int] | None, int | None]:
    route, current = adapter.routes.get("default"), adapter.current()
    return None if route is None else dict(route.weights), current and current.number


def test_without_a_word_the_newest_is_meant_until_there_is_a_route(registry: Registry) -> None:
    add(registry, "sql", b"one")
    assert weights(add(registry, "sql", b"two").after) == (None, 2)
    registry.adapters.routes.set("sql", "default", 2, actor=ACTOR)
    assert weights(add(registry, "sql", b"three").after) == ({2: 100}, 2)


@pytest.mark.parametrize(
    ("activation", "unrouted", "routed"),
    [
        (INACTIVE, ({1: 100}, 1), ({1: 100}, 1)),
        (LIVE, (None, 2), ({2: 100}, 2)),
        (SHARE, ({1: 80, 2: 20}, 1), ({1: 80, 2: 20}, 1)),
    ],
)
def test_whom_a_new_version_answers(
    registry: Registry, activation: Activation, unrouted: object, routed: object
) -> None:
    for name, expected in (("free", unrouted), ("pinned", routed)):
        assert weights(add(registry, name, b"one", activation=activation).after) == (None, 1), "nobody is moved by it"
        if name == "pinned":
            registry.adapters.routes.set(name, "default", 1, actor=ACTOR)
        added = add(registry, name, b"two", activation=activation)
        assert (weights(added.before)[1], weights(added.after)) == (1, expected)
        again = add(registry, name, b"two", activation=activation)
        assert (again.created, weights(again.after)) == (False, expected)


def test_a_share_beside_another_candidate(registry: Registry) -> None:
    for content in (b"one", b"two"):
        add(registry, "sql", content)
    registry.adapters.routes.set("sql", "default", 1, {1: 90, 2: 10}, actor=ACTOR)
    assert weights(add(registry, "sql", b"three", activation=SHARE).after) == ({1: 70, 2: 10, 3: 20}, 1)
    with pytest.raises(InvalidRoute, match="add up to"):
        add(registry, "sql", b"four", activation=Activation("share", 80))
    assert len(registry.adapters.get("sql").versions) == 3, "what cannot be is not half done"


def test_the_operators_rule_holds_for_who_moves_and_not_for_who_stays(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(registry, "sql", b"one")

    def refuse(subject: object) -> None:
        raise ValueError("nothing is certified")

    monkeypatch.setattr(registry.adapters.routes, "_shares", RouteShares(PromotionRule(0.9, refuse)))  # type: ignore[arg-type]
    assert weights(add(registry, "sql", b"two", activation=INACTIVE).after) == ({1: 100}, 1)
    for activation in (LIVE, SHARE):
        with pytest.raises(PromotionRefused):
            add(registry, "sql", b"three", activation=activation)
    assert len(registry.adapters.get("sql").versions) == 2


def test_pinning_what_the_name_means_asks_for_no_certificate(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"one", b"two"):
        add(registry, "sql", content)

    def refuse(subject: object) -> None:
        raise ValueError("nothing is certified")

    monkeypatch.setattr(registry.adapters.routes, "_shares", RouteShares(PromotionRule(0.9, refuse)))  # type: ignore[arg-type]
    with pytest.raises(PromotionRefused):
        registry.adapters.routes.set("sql", "default", 1, actor=ACTOR)
    assert weights(registry.adapters.routes.set("sql", "default", 2, actor=ACTOR)) == ({2: 100}, 2)


@pytest.mark.parametrize(("mode", "percent"), [("share", 0), ("share", 100), ("other", 10)])
def test_what_cannot_be_is_refused(mode: str, percent: int) -> None:
    with pytest.raises(InvalidRoute):
        Activation(mode, percent)  # type: ignore[arg-type]
