"""Tests make an app each, all with the same routes. What FastAPI makes of a route's function, three quarters of what an
app costs, is made once in a process (measured: 55 ms without this, 13 ms with it)."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fastapi import routing
from fastapi.params import Depends

DEPENDANT = "_build_dependant_with_parameterless_dependencies"
"""What reads a function's signature; a FastAPI without it is only slower."""


def read_routes_once(patch: pytest.MonkeyPatch) -> None:
    make: Callable[..., Any] | None = getattr(routing, DEPENDANT, None)
    if make is not None:
        patch.setattr(routing, DEPENDANT, _once(make))


def _once(make: Callable[..., Any]) -> Callable[..., Any]:
    made: dict[tuple[Any, ...], Any] = {}

    def make_once(*, path: str, call: Callable[..., Any], dependencies: Sequence[Depends]) -> Any:
        key = path, call, *dependencies
        if key not in made:
            made[key] = make(path=path, call=call, dependencies=dependencies)
        return made[key]

    return make_once
