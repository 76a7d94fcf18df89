"""Moves: whose requests another version answers after a change than before, in words and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from loraplex.registry.adapters.routes import CALLER, WHOLE, Route, ShareBy
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.names import DEFAULT, LATEST
from loraplex.registry.registry import Registry
from loraplex.registry.usage.usage import CallerUse

from . import answers
from .traffic import traffic_of

NOBODY: Final = "No caller gets another version by this."
Meaning = Mapping[int, int]
"""Per cent by version; empty: requests are refused."""


@dataclass(frozen=True, slots=True)
class Move:
    """`model`: the name that requests use. `share_by`: of what the per cents are, before or after."""

    model: str
    before: Meaning
    after: Meaning
    share_by: ShareBy

    @property
    def losing(self) -> frozenset[int]:
        """Versions that answer less of it."""
        return frozenset(number for number, share in self.before.items() if share > self.after.get(number, 0))


@dataclass(frozen=True, slots=True)
class LastDay:
    """An adapter, and who asked it in the last day. `names`: prefix -> label, of the keys whose labels may be told."""

    adapter: Adapter
    uses: Sequence[CallerUse]
    names: Mapping[str, str]

    def words(self, after: Adapter | None) -> str:
        """Whom the change to `after` moves; None: the adapter is removed."""
        return " ".join(self._sentence(move) for move in moves(self.adapter, after)) or NOBODY

    def told(self, after: Adapter | None) -> list[answers.Move]:
        return [
            answers.Move(
                model=move.model,
                before=_numbered(move.before),
                after=_numbered(move.after),
                share_by=move.share_by,
                last_day=traffic_of(self.uses, self.adapter, move.losing).answer(self.names),
            )
            for move in moves(self.adapter, after)
        ]

    def traffic(self) -> str:
        return traffic_of(self.uses, self.adapter).words(self.names)

    def _sentence(self, move: Move) -> str:
        before, after = _shares(move.before, move.share_by), _shares(move.after, move.share_by)
        what = f"Requests for {move.model} go from {before} to {after}" if after else f"Requests for {move.model} fail"
        versions = " and ".join(map(str, sorted(move.losing)))
        answered = traffic_of(self.uses, self.adapter, move.losing).words(self.names)
        return f"{what}. {'Versions' if len(move.losing) > 1 else 'Version'} {versions} had {answered}."


def read_last_day(registry: Registry, adapter: Adapter, with_labels: bool) -> LastDay:
    """Blocks on the database. `with_labels`: whether the labels of keys may be told."""
    names = registry.keys.names(adapter.tenant) if with_labels else {}
    return LastDay(adapter, registry.usage.last_day(adapter.tenant, adapter.name), names)


def moves(before: Adapter, after: Adapter | None) -> list[Move]:
    """Of the names that something answered before."""
    old, new = meanings(before), {} if after is None else meanings(after)
    routes = {**before.routes, **({} if after is None else after.routes)}
    # Without a route for it, the bare name means the same as this one.
    same = None if DEFAULT in routes else f"{before.name}@{LATEST}"
    return [
        Move(model, meaning, new.get(model, {}), _share_by(routes, model))
        for model, meaning in old.items()
        if model != same and meaning and meaning != new.get(model, {})
    ]


def meanings(adapter: Adapter) -> Mapping[str, Meaning]:
    """Of each name that requests may use, but for single versions."""
    return dict(_meanings(adapter)) if adapter.enabled else {}


def _meanings(adapter: Adapter) -> Iterator[tuple[str, Meaning]]:
    latest = adapter.latest()
    newest = {} if latest is None else {latest.number: WHOLE}
    route = adapter.routes.get(DEFAULT)
    yield adapter.name, newest if route is None else _weights(adapter, route)
    yield f"{adapter.name}@{LATEST}", newest
    for alias, one in adapter.routes.items():
        if alias != DEFAULT:
            yield f"{adapter.name}@{alias}", _weights(adapter, one)


def _weights(adapter: Adapter, route: Route) -> Meaning:
    """The share of a candidate that is disabled goes to the stable version."""
    enabled = {version.number for version in adapter.versions if version.enabled}
    shares = {
        number: weight
        for number, weight in route.weights.items()
        if weight and number in enabled and number != route.stable
    }
    rest = WHOLE - sum(shares.values())
    return {route.stable: rest, **shares} if rest else shares


def _share_by(routes: Mapping[str, Route], model: str) -> ShareBy:
    route = routes.get(model.partition("@")[2] or DEFAULT)
    return CALLER if route is None else route.share_by


def _shares(meaning: Meaning, share_by: ShareBy) -> str:
    if len(meaning) == 1:
        return f"version {next(iter(meaning))}"
    parts = [f"version {number} ({share} % of {share_by}s)" for number, share in meaning.items()]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts else [])


def _numbered(meaning: Meaning) -> dict[str, int]:
    return {str(number): share for number, share in meaning.items()}


def all_to(adapter: Adapter, alias: str, version: int) -> Adapter:
    """With this version as what the alias means for everybody."""
    route = replace(adapter.routes[alias], stable=version, candidates=())
    return replace(adapter, routes={**adapter.routes, alias: route})


def without_alias(adapter: Adapter, alias: str) -> Adapter:
    return replace(adapter, routes={name: route for name, route in adapter.routes.items() if name != alias})


def with_enabled(adapter: Adapter, enabled: Mapping[int, bool]) -> Adapter:
    """With versions enabled or disabled, by number."""
    versions = (replace(one, enabled=enabled.get(one.number, one.enabled)) for one in adapter.versions)
    return replace(adapter, versions=tuple(versions))
