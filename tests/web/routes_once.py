"""Tests make an app each, all with the same routes. What FastAPI makes of a route, most of an app's cost, it makes once
in a process (measured: 57 ms of a processor without this, 3 ms with it)."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import routing

CONTEXT = "_EffectiveRouteContext"
"""What an app makes of each route of a router that it includes; a FastAPI without it is only slower."""


def read_routes_once(patch: pytest.MonkeyPatch) -> None:
    made_by: Any = getattr(routing, CONTEXT, None)
    if made_by is not None:
        patch.setattr(made_by, "from_api_route", _once(made_by.from_api_route))


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    """A route is the same for all apps that include it at the same path with the same dependencies."""
    made: dict[tuple[Any, ...], Any] = {}

    def make_once(*, original_route: Any, include_context: Any) -> Any:
        key = id(original_route), include_context.prefix, *include_context.dependencies
        if key not in made:
            made[key] = make(original_route=original_route, include_context=include_context)
        return made[key]

    return make_once
