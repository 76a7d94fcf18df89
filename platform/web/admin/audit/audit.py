"""The audit log: who did what to what; found, verified, and taken along."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ...access.permissions import Permission
from ...api.access.audit_export import export as export_file
from ...api.access.audit_filter import AskedOf, Wanted, filter_of
from ...api.audit_file import Format
from ...endpoints.dependencies import CallerOf, ChainOf, RegistryOf
from ...http.errors import ApiError
from ..page import PageRoute, is_fragment, page
from ..words import in_labels
from .audit_rows import ACTIONS, audit_line, detail_json, filter_words

SECTION: Final = "/audit"
PAGE_ROWS: Final = 100
LABELS: Final = {"actor": "Who", "action": "Did", "subject": "To what", "from": "From", "to": "To"}
QUICKLY_VERIFIED: Final = 20_000
"""Rows that are verified whenever the page is opened; more take seconds, so then one has to ask."""
Id = Annotated[int | None, Query(ge=1, lt=2**63)]

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(
    request: Request,
    registry: RegistryOf,
    caller: CallerOf,
    asked: AskedOf,
    before: Id = None,
    everyone: bool = False,
) -> Response:
    """The page; for htmx the table alone, or with `before` the rows that follow."""
    template = _template(is_fragment(request), before)
    try:
        wanted = filter_of(caller, everyone, asked)
    except ApiError as error:
        frame = _frame(everyone, asked)
        return page(request, template, SECTION, error.status, **frame, rows=[], problem=in_labels(error, LABELS))
    audit = registry.audit
    found = await asyncio.to_thread(audit.search, wanted, PAGE_ROWS + 1, before)
    head = await asyncio.to_thread(audit.head)
    return page(
        request,
        template,
        SECTION,
        200,
        **_frame(everyone, filter_words(wanted)),
        rows=[audit_line(entry, caller) for entry in found[:PAGE_ROWS]],
        after=found[PAGE_ROWS - 1].id if len(found) > PAGE_ROWS else None,
        quickly=head <= QUICKLY_VERIFIED,
        length=f"{head:,}" if caller.allows(Permission.OPERATE) else "",
    )


@router.get("/chain")
async def chain(request: Request, chain: ChainOf, caller: CallerOf) -> Response:
    """A fragment: whether the whole chain is what was written."""
    verdict = await chain.verdict()
    return page(request, "audit/_chain.html", SECTION, verdict=verdict)


@router.get("/export")
async def export(registry: RegistryOf, wanted: Wanted, format: Format = "csv") -> Response:
    """All rows that are wanted, newest first, as a file."""
    return export_file(registry.audit, wanted, format)


@router.get("/{number}")
async def detail(
    request: Request, number: str, registry: RegistryOf, caller: CallerOf, everyone: bool = False
) -> Response:
    wanted = filter_of(caller, everyone, {})
    known = number.isascii() and number.isdigit() and len(number) < 19
    entry = await asyncio.to_thread(registry.audit.get, int(number), wanted) if known else None
    if entry is None:
        raise ApiError(404, "This audit log row does not exist, or you cannot see it.")
    frame = _frame(everyone, {})
    return page(
        request,
        "audit/detail.html",
        SECTION,
        200,
        **frame,
        row=audit_line(entry, caller),
        entry=entry,
        json=detail_json(entry),
    )


def _frame(everyone: bool, asked: Mapping[str, str]) -> dict[str, object]:
    return {
        "asked": {**asked, **({"everyone": "true"} if everyone else {})},
        "everyone": everyone,
        "actions": ACTIONS,
    }


def _template(fragment: bool, before: int | None) -> str:
    if not fragment:
        return "audit/page.html"
    return "audit/_table.html" if before is None else "audit/_rows.html"
