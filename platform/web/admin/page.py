"""Rendering: one Jinja environment, the few values every page needs, and refusals as pages."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import RedirectResponse, Response
from starlette.templating import Jinja2Templates

from ..access.caller import Caller
from ..access.permissions import Permission, who_may
from ..access.sessions import login_of
from ..endpoints.dependencies import state_of
from ..http.errors import LOGIN_PATH, ApiError, from_validation
from .addresses import elsewhere_of, local_address, root_of
from .menu import menu_of
from .tenant_switch import tenant_switch
from .undo_bar import undo_bar
from .words import engine_words

TEMPLATES: Final = Jinja2Templates(Path(__file__).resolve().parent.parent / "templates")
SEE_OTHER: Final = 303
NOT_KEPT: Final = {"cache-control": "no-store"}
"""A page is nobody's after the logout, and a part of one must not come back as the whole."""
HEADINGS: Final = {
    403: "Not allowed",
    404: "Not found",
    405: "Nothing to show here",
    413: "Too large",
    500: "Server error",
    503: "Temporarily unavailable",
}
OTHER_HEADING: Final = "Something went wrong"
NOT_ABOUT_WHO: Final = frozenset({413, 500, 503})
"""A login would change nothing."""
START: Final = ("/", "Go to the overview")
LOGIN: Final = (LOGIN_PATH, "Log in")


class PageRoute(APIRoute):
    """A route for people: what it refuses becomes a page or a redirect to the login instead of JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_for_people(request: Request) -> Response:
            try:
                return await handle(request)
            except (ApiError, RequestValidationError) as error:
                known = from_validation(error) if isinstance(error, RequestValidationError) else error
                refusal = _refusal(request, known)
                if refusal is None:
                    raise
                return refusal

        return handle_for_people


def page(request: Request, template: str, section: str, status: int = 200, **context: object) -> Response:
    """A page or fragment for a logged-in user; `section` is the entry of the menu it belongs to.

    Templates ask `may("POST /keys")` before they show what leads there, and `who("POST /keys")` whom else to send;
    `operator` before they speak of what only a shell on the server or its settings can do. `to` makes the addresses of
    pages, `elsewhere` is the tenant that the operator looks at. `silent`: the base generates no text; `keeps_keys`: it
    has a KV cache.
    """
    caller: Caller | None = getattr(request.state, "caller", None)
    session = caller and caller.session
    state = state_of(request)
    (words, tone), info = engine_words(state), state.engine.info
    root, elsewhere = root_of(request), elsewhere_of(request)
    frame = {
        "root": root,
        "section": section,
        "elsewhere": elsewhere,
        "to": lambda path, tenant=elsewhere, **query: root + local_address(path, tenant, **query),
        "switch": tenant_switch(state.snapshots, caller, section),
        "login": login_of(session.user, session.tenant) if session else "",
        "csrf_token": session.csrf_token if session else "",
        "menu": menu_of(caller),
        "may": lambda route: caller is not None and caller.may(route),
        "who": who_may,
        "oversees": caller is not None and caller.oversees,
        "shared": len(state.snapshots.current.tenants) > 1,
        "operator": caller is not None and caller.allows(Permission.OPERATE),
        "engine": {"words": words, "tone": tone},
        "silent": info is not None and bool(info.why_silent),
        "keeps_keys": info is None or info.num_blocks > 0,
        "undo": None if session is None or caller is None else undo_bar(state.snapshots, caller),
    }
    return TEMPLATES.TemplateResponse(request, template, frame | context, status, NOT_KEPT)


def address_of(request: Request) -> str:
    """Scheme, host and sub-path as the browser reached this server."""
    return f"{request.url.scheme}://{request.url.netloc}{root_of(request)}"


def go_to(request: Request, path: str) -> Response:
    return RedirectResponse(root_of(request) + local_address(path, elsewhere_of(request)), SEE_OTHER)


def is_fragment(request: Request) -> bool:
    """Whether htmx asks for a part of a page."""
    return request.headers.get("hx-request") == "true"


def is_for_people(request: Request) -> bool:
    """Whether a browser asks for a page."""
    return not is_fragment(request) and "text/html" in request.headers.get("accept", "")


def refusal_page(request: Request, error: ApiError) -> Response:
    """With the menu for who is logged in, and the way to the login for all others."""
    caller: Caller | None = getattr(request.state, "caller", None)
    template = "refused.html" if caller is None else "error.html"
    heading = HEADINGS.get(error.status, OTHER_HEADING)
    way = START if error.status in NOT_ABOUT_WHO else LOGIN
    refused = page(request, template, "", error.status, heading=heading, message=error.message, way=way)
    refused.headers.update(error.headers)
    return refused


def _refusal(request: Request, error: ApiError) -> Response | None:
    """None where a program asks: it reads JSON."""
    if is_fragment(request) and error.status == 401:
        return Response(status_code=401, headers={"hx-redirect": root_of(request) + LOGIN_PATH})
    if not is_for_people(request):
        return None
    if error.status == 401:
        return go_to(request, f"{LOGIN_PATH}?next={quote(_path(request))}" if request.method == "GET" else LOGIN_PATH)
    return refusal_page(request, error)


def _path(request: Request) -> str:
    """What was asked for, seen from this app's root."""
    path = request.url.path.removeprefix(root_of(request))
    return f"{path}?{request.url.query}" if request.url.query else path
