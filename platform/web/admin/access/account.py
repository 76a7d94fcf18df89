"""Who is logged in, as what, and another password: for everybody, while the users' pages are for admins."""

from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from loraplex.registry.access.passwords import MIN_PASSWORD_LENGTH
from loraplex.registry.access.scopes import ADMIN_ROLE, EDITOR_ROLE, VIEWER_ROLE
from loraplex.registry.database.tables import DEFAULT_TENANT

from ...access.caller import Caller
from ...access.sessions import Session, login_of
from ...endpoints.authentication import client_address
from ...endpoints.dependencies import CallerOf, StateOf
from ..forms import Form, read_form
from ..page import PageRoute, go_to, page

SECTION: Final = "/account"
NOTICES: Final = {"password": "Password changed. Your other sessions are logged out."}
MAY: Final = {
    VIEWER_ROLE: "view adapters, memory and usage",
    EDITOR_ROLE: "use models, upload adapters and change how they are served",
    ADMIN_ROLE: "manage keys and users, and read the audit log",
}
"""What each role adds to those before it."""
OPERATE: Final = "operate the server: tenants, engine and settings"

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(request: Request, caller: CallerOf, done: str = "") -> Response:
    return _page(request, caller, Form(), done=NOTICES.get(done))


@router.post("/password")
async def set_password(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """Ends all sessions of the user, and begins a new one here."""
    form, session = await read_form(request), caller.session
    if session is None:
        return _page(request, caller, form)
    new = form.values.get("password", "")
    address = client_address(request)
    cookie = None

    def change() -> str | None:
        by = {"actor": f"user:{session.user}", "tenant": session.tenant}
        state.registry.users.set_password(session.user, new, role=None, **by)
        return state.sessions.log_in(login_of(session.user, session.tenant), new, address)

    confirm = partial(state.sessions.confirm, session, form.values.get("current", ""), address)
    if not await state.passwords.run(confirm, address):
        form.errors["current"] = "This is not your current password."
    else:
        with form.refusals(weak_secret="password"):
            cookie = await state.passwords.run(change, address)
    if not form.is_good:
        return _page(request, caller, form)
    response = go_to(request, f"{SECTION}?done=password")
    if cookie is not None:
        state.sessions.keep(response, cookie, secure=request.url.scheme == "https")
    return response


def _page(request: Request, caller: Caller, form: Form, done: str | None = None) -> Response:
    status = 200 if form.is_good else form.status
    may = [] if caller.session is None else _may(caller.session)
    who = {"session": caller.session, "tenant": caller.own_tenant, "may_words": may}
    frame = {"password_length": MIN_PASSWORD_LENGTH, "form": form, "done": done}
    return page(request, "account.html", SECTION, status, **who, **frame)


def _may(session: Session) -> list[str]:
    roles = list(MAY)
    words = [MAY[role] for role in roles[: roles.index(session.role) + 1]]
    return [*words, OPERATE] if (session.role, session.tenant) == (ADMIN_ROLE, DEFAULT_TENANT) else words
