"""Rendering: one Jinja environment, and the few values every page needs."""

from pathlib import Path
from typing import Final

from fastapi import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from ..auth import caller_of

TEMPLATES: Final = Jinja2Templates(Path(__file__).resolve().parent.parent / "templates")


def page(request: Request, template: str, section: str, status: int = 200, **context: object) -> Response:
    """A page or fragment for a logged-in user; `section` is the entry of the menu it belongs to."""
    session = caller_of(request).session
    frame = {
        "root": request.scope.get("root_path", ""),
        "section": section,
        "csrf_token": "" if session is None else session.csrf_token,
    }
    return TEMPLATES.TemplateResponse(request, template, frame | context, status_code=status)


def is_fragment(request: Request) -> bool:
    """Whether htmx asks for a part of a page."""
    return request.headers.get("hx-request") == "true"
