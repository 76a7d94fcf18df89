"""Logging in and out."""

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...endpoints.authentication import check_origin, client_address, form_fields
from ...endpoints.dependencies import CallerOf, SessionsOf, StateOf
from ...http.errors import LOGIN_PATH, ApiError
from ..addresses import root_of
from ..page import NOT_KEPT, TEMPLATES, PageRoute, go_to

WRONG: Final = "Wrong user or password."
LOCAL_PATH: Final = re.compile(r"/(?!/)[!-\[\]-~]*")
"""Printable ASCII without a backslash: browsers drop tabs and read a backslash as a slash."""

router = APIRouter(include_in_schema=False, route_class=PageRoute)


@router.get("/login")
async def form(request: Request, next: str = "/") -> Response:
    return _form(request, next)


@router.post("/login")
async def log_in(request: Request, state: StateOf) -> Response:
    check_origin(request)
    fields = await form_fields(request)
    user, password, target = fields.get("user", ""), fields.get("password", ""), _local_path(fields.get("next", "/"))
    address = client_address(request)
    try:
        state.sessions.check_guesses(user, address)
        cookie = await state.passwords.run(partial(state.sessions.log_in, user, password, address), address)
    except ApiError as error:
        return _form(request, target, user, error.message, error.status, error.headers)
    if cookie is None:
        return _form(request, target, user, WRONG, 401)
    response = go_to(request, target)
    state.sessions.keep(response, cookie, secure=request.url.scheme == "https")
    return response


@router.post("/logout")
async def log_out(request: Request, sessions: SessionsOf, caller: CallerOf) -> Response:
    if caller.session is not None:
        await asyncio.to_thread(sessions.end, caller.session)
    response = go_to(request, LOGIN_PATH)
    sessions.forget(response)
    return response


def _form(
    request: Request,
    target: str,
    user: str = "",
    error: str | None = None,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    context = {"root": root_of(request), "next": _local_path(target), "user": user, "error": error}
    return TEMPLATES.TemplateResponse(request, "login.html", context, status, NOT_KEPT | dict(headers or {}))


def _local_path(target: str) -> str:
    """The path to go to after the login; anything that could leave this host becomes the overview."""
    return target if LOCAL_PATH.fullmatch(target) else "/"
