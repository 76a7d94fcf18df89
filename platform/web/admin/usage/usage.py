"""What was used, by whom, with what, when: figures, charts, a table, and the same as CSV."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from loraplex.registry.errors import InvalidQuery
from loraplex.registry.registry import Registry
from loraplex.registry.usage.ledger import COUNTS
from loraplex.registry.usage.usage import SHADOW, Usage, UsageQuery, columns_of, usage_query

from ...access.caller import Caller
from ...access.permissions import Permission
from ...endpoints.dependencies import CallerOf, FirstDay, RegistryOf
from ...http.errors import ApiError, invalid
from ...units import count_words, percent_words
from ...usage.usage_csv import csv_head, csv_rows, versions_for, with_versions
from ..page import NOT_KEPT, PageRoute, is_fragment, page
from ..words import in_labels
from .usage_rows import GROUPINGS, asked_words, chart_points, heads, is_hourly, unknown_words, usage_lines

SECTION: Final = "/usage"
MOST_ROWS: Final = 200
DAYS: Final = 30
MOST_DAYS: Final = 3700
LABELS: Final = {"from": "From", "to": "To", "actor": "Key or user", "adapter": "Adapter"}
Text = Annotated[str, Query(max_length=600)]


async def _asked(first: FirstDay = "", to: str = "", actor: Text = "", adapter: Text = "") -> dict[str, str]:
    return {"from": first, "to": to, "adapter": adapter, "actor": actor}


AskedOf = Annotated[dict[str, str], Depends(_asked)]
router = APIRouter(prefix=SECTION, include_in_schema=False, route_class=PageRoute)


@router.get("")
async def index(request: Request, registry: RegistryOf, caller: CallerOf, asked: AskedOf, by: str = "") -> Response:
    """The page, or for htmx the part of it that the filters change."""
    frame = {"groupings": GROUPINGS, "ranges": _ranges()}
    template = "usage/_sums.html" if is_fragment(request) else "usage/page.html"
    try:
        query = _query(caller.tenant, asked, by)
    except ApiError as error:
        problem = in_labels(error, LABELS)
        return page(request, template, SECTION, error.status, **frame, asked=asked, by=by, names={}, problem=problem)
    table = await asyncio.to_thread(registry.usage.table, query, MOST_ROWS, "day" not in columns_of(query.by))
    total = table.total
    names = await _names(registry, caller)
    return page(
        request,
        template,
        SECTION,
        200,
        **frame,
        asked=asked_words(query),
        by=",".join(query.by),
        heads=heads(query.by),
        lines=usage_lines(registry.snapshots, query, table.rows, total, names),
        whole=table.whole,
        total={name: f"{getattr(total, name):,}" for name in COUNTS},
        any=total.requests > 0,
        cached_share=percent_words(total.cached_tokens / max(1, total.prompt_tokens), 0),
        unknown=unknown_words(total),
        hourly=is_hourly(query),
        names=names,
        days=count_words((date.fromisoformat(query.last) - date.fromisoformat(query.first)).days + 1, "day"),
    )


@router.get("/points")
async def points(registry: RegistryOf, caller: CallerOf, asked: AskedOf) -> Response:
    """The points of the page's charts."""
    query = _query(caller.tenant, asked, "day")
    if is_hourly(query):
        query = replace(query, by=("hour",))
    rows = await asyncio.to_thread(registry.usage.sums, query)
    return JSONResponse(chart_points(query, rows), headers=NOT_KEPT)


@router.get("/csv")
async def download(registry: RegistryOf, caller: CallerOf, asked: AskedOf, by: str = "") -> Response:
    """All rows of the table, however many."""
    query = _query(caller.tenant, asked, by)
    name = f"usage-{caller.tenant}-{query.first}-{query.last}.csv"
    headers = NOT_KEPT | {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_csv(registry.usage, query), media_type="text/csv; charset=utf-8", headers=headers)


async def _csv(usage: Usage, query: UsageQuery) -> AsyncIterator[str]:
    """A day at a time where days are told apart, so that a year fits into memory and no transaction stays open."""
    yield csv_head(query)
    versions = await asyncio.to_thread(versions_for, usage, query)
    days = await asyncio.to_thread(usage.days, query) if "day" in columns_of(query.by) else [""]
    for day in days:
        of_day = replace(query, first=day, last=day) if day else query
        rows = await asyncio.to_thread(usage.sums, of_day)
        yield csv_rows(with_versions(rows, query, versions), query)


def _query(tenant: str, asked: Mapping[str, str], by: str) -> UsageQuery:
    """With the last 30 days where none are named. Raises ApiError."""
    actor = asked["actor"].strip()
    kind, _, name = actor.partition(":")
    if actor not in ("", SHADOW) and (kind not in ("key", "user") or not name):
        raise invalid(f"Enter key:PREFIX or user:NAME, or {SHADOW} for shadow requests.", "actor")
    key, user = (name, "") if kind == "key" else ("", name)
    last = asked["to"] or datetime.now(UTC).date().isoformat()
    try:
        query = usage_query(tenant, asked["from"], last, key, user, asked["adapter"].strip(), by or "adapter")
        begin = query.first or (date.fromisoformat(last) - timedelta(days=DAYS - 1)).isoformat()
    except InvalidQuery as error:
        raise invalid(str(error), error.field) from None
    except OverflowError:
        raise invalid("There are no days before 0001-01-01. Choose later ones.", "to") from None
    if not 0 <= (date.fromisoformat(last) - date.fromisoformat(begin)).days < MOST_DAYS:
        raise invalid("The first day must be on or before the last, and at most ten years earlier.", "from")
    return replace(query, first=begin, actor=actor if actor == SHADOW else query.actor)


async def _names(registry: Registry, caller: Caller) -> Mapping[str, str]:
    """Labels of keys, for those who may see the keys."""
    if not caller.allows(Permission.ADMIN):
        return {}
    return await asyncio.to_thread(registry.keys.names, caller.tenant)


def _ranges() -> list[tuple[str, str, str]]:
    """Words, first and last day of what people mostly ask for."""
    today = datetime.now(UTC).date()
    month = today.replace(day=1)
    before = month - timedelta(days=1)
    spans = (
        ("Today", today, today),
        ("7 days", today - timedelta(days=6), today),
        ("30 days", today - timedelta(days=29), today),
        ("This month", month, today),
        ("Last month", before.replace(day=1), before),
    )
    return [(words, first.isoformat(), last.isoformat()) for words, first, last in spans]
