"""Logging in and out."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from ..auth import check_origin, form_fields
from ..dependencies import StateOf
from ..errors import ApiError
from .page import TEMPLATES

SEE_OTHER: Final = 303

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def form(request: Request, next: str = "/") -> Response:
    return _form(request, next)


@router.post("/login")
async def log_in(request: Request, state: StateOf) -> Response:
    check_origin(request)
    fields = await form_fields(request)
    user, target = fields.get("user", ""), _local_path(fields.get("next", "/"))
    try:
        cookie = await asyncio.to_thread(state.sessions.log_in, user, fields.get("password", ""))
    except ApiError as error:
        return _form(request, target, user, error.message, error.status)
    if cookie is None:
        return _form(request, target, user, "User or password is wrong.", 401)
    response = RedirectResponse(request.scope.get("root_path", "") + target, SEE_OTHER)
    state.sessions.keep(response, cookie, secure=request.url.scheme == "https")
    return response


@router.post("/logout")
async def log_out(request: Request, state: StateOf) -> Response:
    response = RedirectResponse(request.scope.get("root_path", "") + "/login", SEE_OTHER)
    state.sessions.forget(response)
    return response


def _form(request: Request, target: str, user: str = "", error: str | None = None, status: int = 200) -> Response:
    context = {"root": request.scope.get("root_path", ""), "next": _local_path(target), "user": user, "error": error}
    return TEMPLATES.TemplateResponse(request, "login.html", context, status_code=status)


def _local_path(target: str) -> str:
    """The path to go to after the login; anything that could leave this host becomes the overview."""
    parts = urlsplit(target)
    safe = not parts.scheme and not parts.netloc and target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if safe else "/"
