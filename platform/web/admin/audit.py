"""The audit log: who did what to what; found, verified, and taken along."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import date
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from loraplex.registry.audit import AuditEntry, AuditFilter, AuditLog

from ..auth import Caller
from ..dependencies import CallerOf, StateOf, TenantOf
from ..errors import ApiError, forbidden, invalid
from ..permissions import Permission
from .addresses import tenant_frame
from .audit_rows import ACTIONS, COLUMNS, as_csv, as_json_lines, audit_line, detail_json, filter_words
from .page import NOT_KEPT, PageRoute, is_fragment, page

SECTION: Final = "/audit"
PAGE_ROWS: Final = 100
BATCH: Final = 1000
QUICKLY_VERIFIED: Final = 20_000
"""Rows that are verified whenever the page is opened; more take seconds, so then one has to ask."""
Text = Annotated[str, Query(max_length=255)]
First = Annotated[str, Query(alias="from")]
Id = Annotated[int | None, Query(ge=1, lt=2**63)]

router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(
    request: Request,
    state: StateOf,
    caller: CallerOf,
    tenant: TenantOf,
    actor: Text = "",
    action: Text = "",
    subject: Text = "",
    first: First = "",
    to: str = "",
    before: Id = None,
    everyone: bool = False,
) -> Response:
    """The page; for htmx the table alone, or with `before` the rows that follow."""
    template = _template(is_fragment(request), before)
    try:
        wanted = _filter(_scope(caller, tenant, everyone), actor, action, subject, first, to)
    except ApiError as error:
        asked = {"actor": actor, "action": action, "subject": subject, "from": first, "to": to}
        frame = _frame(request, caller, tenant, everyone, asked)
        return page(request, template, SECTION, error.status, **frame, rows=[], problem=error.message)
    audit = state.registry.audit
    found = await asyncio.to_thread(audit.search, wanted, PAGE_ROWS + 1, before)
    head = await asyncio.to_thread(audit.head)
    return page(
        request,
        template,
        SECTION,
        200,
        **_frame(request, caller, tenant, everyone, filter_words(wanted)),
        rows=[audit_line(entry, caller.tenant) for entry in found[:PAGE_ROWS]],
        after=found[PAGE_ROWS - 1].id if len(found) > PAGE_ROWS else None,
        quickly=head <= QUICKLY_VERIFIED,
        length=f"{head:,}",
    )


@router.get("/chain")
async def chain(request: Request, state: StateOf, caller: CallerOf) -> Response:
    """A fragment: the whole chain computed anew."""
    verdict = await asyncio.to_thread(state.registry.audit.verify)
    return page(request, "audit/_chain.html", SECTION, verdict=verdict, operator=caller.allows(Permission.OPERATE))


@router.get("/export")
async def export(
    state: StateOf,
    caller: CallerOf,
    tenant: TenantOf,
    actor: Text = "",
    action: Text = "",
    subject: Text = "",
    first: First = "",
    to: str = "",
    everyone: bool = False,
    format: Literal["csv", "jsonl"] = "csv",
) -> Response:
    """All rows that are wanted, newest first, as a file."""
    wanted = _filter(_scope(caller, tenant, everyone), actor, action, subject, first, to)
    headers = NOT_KEPT | {"content-disposition": f'attachment; filename="audit-{wanted.tenant or "all"}.{format}"'}
    if format == "csv":
        text = _streamed(state.registry.audit, wanted, as_csv, ",".join(COLUMNS) + "\r\n")
        return StreamingResponse(text, media_type="text/csv; charset=utf-8", headers=headers)
    text = _streamed(state.registry.audit, wanted, as_json_lines)
    return StreamingResponse(text, media_type="application/jsonl", headers=headers)


@router.get("/{number}")
async def detail(
    request: Request, number: str, state: StateOf, caller: CallerOf, tenant: TenantOf, everyone: bool = False
) -> Response:
    scope = _scope(caller, tenant, everyone)
    known = number.isascii() and number.isdigit() and len(number) < 19
    entry = await asyncio.to_thread(state.registry.audit.get, int(number), scope) if known else None
    if entry is None:
        raise ApiError(404, "The audit log has no such row that you may see.")
    frame = _frame(request, caller, tenant, everyone, {})
    return page(
        request,
        "audit/detail.html",
        SECTION,
        200,
        **frame,
        row=audit_line(entry, caller.tenant),
        entry=entry,
        json=detail_json(entry),
    )


async def _streamed(
    audit: AuditLog, wanted: AuditFilter, write: Callable[[Sequence[AuditEntry]], str], head: str = ""
) -> AsyncIterator[str]:
    """A batch at a time, so that any log fits into memory."""
    yield head
    before: int | None = None
    while rows := await asyncio.to_thread(audit.search, wanted, BATCH, before):
        yield write(rows)
        before = rows[-1].id


def _frame(request: Request, caller: Caller, tenant: str, everyone: bool, asked: dict[str, str]) -> dict[str, object]:
    return {
        **tenant_frame(request, caller, tenant),
        "asked": asked | ({"everyone": "true"} if everyone else {}),
        "everyone": everyone,
        "operator": caller.allows(Permission.OPERATE),
        "actions": ACTIONS,
    }


def _scope(caller: Caller, tenant: str, everyone: bool) -> str | None:
    """Whose rows; None: everybody's, for the operator."""
    if everyone and not caller.allows(Permission.OPERATE):
        raise forbidden("Only the operator of this server may see the audit log of all tenants.")
    return None if everyone else tenant


def _filter(scope: str | None, actor: str, action: str, subject: str, first: str, to: str) -> AuditFilter:
    parts = (_part(actor, "actor"), _part(action, "action"), _part(subject, "subject"))
    return AuditFilter(scope, *parts, _day(first, "from"), _day(to, "to"))


def _part(text: str, field: str) -> str:
    """No name has an unprintable character, and PostgreSQL takes no zero byte."""
    if not text.isprintable():
        raise invalid(f"The {field} has a character that no name has.", field)
    return text.strip()


def _day(text: str, field: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise invalid(f"{field} must be a day such as 2026-11-22; got {text[:40]!a}.", field) from None


def _template(fragment: bool, before: int | None) -> str:
    if not fragment:
        return "audit/page.html"
    return "audit/_table.html" if before is None else "audit/_rows.html"
