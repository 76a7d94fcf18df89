"""What endpoints ask for costs no thread: FastAPI gives one to each plain function, and refusals wait for it."""

import inspect
from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from loraplex.web.app import create_app
from loraplex.web.state import State


def dependencies(dependant: Dependant) -> Iterator[Dependant]:
    for one in dependant.dependencies:
        yield one
        yield from dependencies(one)


def test_every_dependency_is_a_coroutine(state: State) -> None:
    routes = [context.original_route for context in iter_route_contexts(create_app(state).routes)]
    asked = [
        (route.path, one.call)
        for route in routes
        if isinstance(route, APIRoute)
        for one in dependencies(route.dependant)
    ]
    assert len(asked) > 100
    assert not [(path, call) for path, call in asked if not inspect.iscoroutinefunction(call)]
