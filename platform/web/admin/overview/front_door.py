"""FrontDoorRoute: `/` is the overview for people. A program that may use models is told there that the server runs."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request
from starlette.responses import PlainTextResponse, Response

from ...endpoints.authentication import may_use_models
from ...http.errors import ApiError
from ..page import PageRoute, is_for_people, is_fragment

RUNNING: Final = "loraplex is running. The API is under /v1, see /v1/models and /docs."


class FrontDoorRoute(PageRoute):
    """Clients of Ollama ask for `/` before anything else, and give up where it is refused."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_for_all(request: Request) -> Response:
            try:
                return await handle(request)
            except ApiError:
                is_page = is_for_people(request) or is_fragment(request)
                if is_page or not await may_use_models(request):
                    raise
                return PlainTextResponse(RUNNING)

        return handle_for_all
