"""What a dialog asks before a click moves callers: whom it moves, with the figures of the last day."""

from collections.abc import Mapping
from dataclasses import dataclass

from loraplex.registry.adapters.routes import Route
from loraplex.registry.adapters.views import Adapter
from loraplex.registry.names import DEFAULT
from loraplex.registry.registry import Registry

from ..access.caller import Caller
from ..access.permissions import Permission
from ..routing.moves import LastDay, all_to, moves, read_last_day, with_enabled, without_alias


@dataclass(frozen=True, slots=True)
class Question:
    heading: str
    words: str
    yes: str


def last_day_of(registry: Registry, caller: Caller, adapter: Adapter) -> LastDay:
    """Blocks on the database."""
    return read_last_day(registry, adapter, caller.allows(Permission.ADMIN))


def disable_question(day: LastDay) -> Question:
    name = day.adapter.name
    words = f"{name} had {day.traffic()}. Requests for any of its names will be refused. Running ones finish."
    return Question(f"Disable {name}?", words, "Disable")


def delete_question(day: LastDay) -> Question:
    words = f"{day.adapter.name} had {day.traffic()}. Requests for any of its names will get 404. Running ones finish."
    return Question(f"Delete {day.adapter.name}?", words, "Delete adapter")


def promote_question(day: LastDay, route: Route, version: int) -> Question:
    words = day.words(all_to(day.adapter, route.alias, version))
    return Question(
        f"Promote version {version} of {model_of(day.adapter, route)}?", words, f"Promote version {version}"
    )


def rollback_question(day: LastDay, route: Route) -> Question | None:
    """None: nothing would move."""
    shared = any(one.weight for one in route.candidates)
    version = route.stable if shared or route.trip else route.previous
    if version is None or (not shared and route.trip):
        return None
    words = day.words(all_to(day.adapter, route.alias, version))
    return Question(f"Roll {model_of(day.adapter, route)} back to version {version}?", words, "Roll back")


def remove_question(day: LastDay, route: Route) -> Question:
    """Of the route."""
    words = day.words(without_alias(day.adapter, route.alias))
    if route.alias == DEFAULT:
        return Question(f"Stop pinning the default version of {day.adapter.name}?", words, "Stop pinning")
    return Question(f"Remove {model_of(day.adapter, route)}?", words, "Remove")


@dataclass(frozen=True, slots=True)
class VersionQuestions:
    """`enable` None: it moves nobody. `add_route`: what a new route `default` to the version moves; empty: nobody."""

    current: Question
    disable: Question
    enable: Question | None
    add_route: str


def version_questions(day: LastDay) -> Mapping[int, VersionQuestions]:
    """By number."""
    numbers = [one.number for one in day.adapter.versions]
    return {
        number: VersionQuestions(
            _current(day, number), _disable(day, number), _enable(day, number), _add_route(day, number)
        )
        for number in numbers
    }


def _enable(day: LastDay, number: int) -> Question | None:
    after = with_enabled(day.adapter, {number: True})
    if not moves(day.adapter, after):
        return None
    return Question(f"Enable version {number}?", day.words(after), f"Enable version {number}")


def _add_route(day: LastDay, number: int) -> str:
    adapter, current = day.adapter, day.adapter.current()
    if DEFAULT in adapter.routes or current is None or current.number == number:
        return ""
    newer = {one.number: False for one in adapter.versions if one.number > number}
    words = day.words(with_enabled(adapter, {number: True, **newer}))
    return f"With the alias '{DEFAULT}': {words} With any other alias nobody is moved."


def _current(day: LastDay, number: int) -> Question:
    adapter = day.adapter
    if DEFAULT in adapter.routes:
        after = all_to(adapter, DEFAULT, number)
    else:
        newer = {one.number: False for one in adapter.versions if one.number > number}
        after = with_enabled(adapter, {number: True, **newer})
    return Question(f"Make version {number} current?", day.words(after), f"Use version {number}")


def _disable(day: LastDay, number: int) -> Question:
    words = day.words(with_enabled(day.adapter, {number: False}))
    refused = f"Requests for {day.adapter.name}@{number} will be refused."
    return Question(f"Disable version {number}?", f"{words} {refused}", f"Disable version {number}")


def model_of(adapter: Adapter, route: Route) -> str:
    """What clients ask for."""
    return adapter.name if route.alias == DEFAULT else f"{adapter.name}@{route.alias}"
