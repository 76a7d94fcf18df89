"""What no page's own route answers, as pages for browsers: unknown addresses, wrong methods, faults of ours, and what
is turned away before any route."""

import logging
from contextlib import suppress
from typing import Any, Final

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from ..endpoints.authentication import identify
from ..endpoints.dependencies import request_id_of, state_of
from ..http import errors
from ..http.errors import ApiError
from .addresses import root_of
from .page import is_for_people, refusal_page

APIS: Final = ("/v1/", "/api/")
"""Below these even a browser gets JSON."""
WORDS: Final = {
    404: "There is no page at {path}. Check the address; the page may also have been removed.",
    405: "{path} cannot be opened directly. Go back and use the form that leads here.",
}
FAILED: Final = (
    "This is a fault of the server. Try again. If it fails again, give the operator the request id {request_id}: "
    "the server's log has the cause under it."
)

logger = logging.getLogger(__name__)


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """404 for unknown paths, 405 for wrong methods, and whatever else the framework raises."""
    assert isinstance(error, HTTPException)
    if not _asks_for_a_page(request):
        return await errors.answer_http_exception(request, error)
    with suppress(ApiError):
        request.state.caller = await identify(request, state_of(request))
    words = WORDS.get(error.status_code, "{detail}").format(path=request.url.path[:200], detail=error.detail)
    return refusal_page(request, ApiError(error.status_code, words, headers=error.headers))


def page_of_refusal(scope: Scope, error: ApiError) -> Response | None:
    """None where a program asks, or where a fault of ours keeps this page from being made."""
    request = Request(scope)
    if not _asks_for_a_page(request):
        return None
    try:
        return refusal_page(request, error)
    except Exception:
        logger.exception("the page about a refusal cannot be made")
        return None


def page_of_crash(scope: Scope) -> Response | None:
    """As page_of_refusal."""
    return page_of_refusal(scope, ApiError(500, FAILED.format(request_id=request_id_of(Request(scope)))))


def _asks_for_a_page(request: Request) -> bool:
    path = request.url.path.removeprefix(root_of(request))
    return is_for_people(request) and not path.startswith(APIS)


HANDLERS: Final[dict[Any, Any]] = errors.HANDLERS | {HTTPException: answer_http_exception}
