"""/api/v1/usage: what was used, by day or hour, key and adapter version; as JSON or CSV."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from loraplex.registry.errors import InvalidQuery
from loraplex.registry.ledger import COUNTS
from loraplex.registry.usage import columns_of, usage_query

from ..csv_lines import csv_lines
from ..dependencies import CallerOf, StateOf, TenantOf
from ..errors import invalid

MOST_ROWS: Final = 10_000
Text = Annotated[str, Query(max_length=600)]

router = APIRouter(tags=["Usage"])


@router.get("/api/v1/usage")
async def get_usage(
    state: StateOf,
    caller: CallerOf,
    tenant: TenantOf,
    first: Annotated[str, Query(alias="from")] = "",
    to: str = "",
    key: Text = "",
    user: Text = "",
    adapter: Text = "",
    by: str = "day,key,adapter",
    format: Literal["json", "csv"] = "json",
) -> Response:
    """Sums of the days `from` to `to` (UTC, both included), told apart by what `by` names: day, hour, key, adapter.

    `key` is a prefix, `adapter` a name. A request that ended less than a second ago may be missing.
    """
    try:
        query = usage_query(tenant, first, to, key, user, adapter, by)
    except InvalidQuery as error:
        raise invalid(str(error), error.field) from None
    if caller.only is not None:
        query = replace(query, actor=caller.actor)
    rows = await asyncio.to_thread(state.registry.usage.sums, query, MOST_ROWS + 1)
    if len(rows) > MOST_ROWS:
        raise invalid(f"These are more than {MOST_ROWS:,} rows. Ask for fewer days, one key or one adapter.", "from")
    if format == "csv":
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        return Response(as_csv(rows, query.by), media_type="text/csv", headers=headers)
    return JSONResponse({"data": [dict(row) for row in rows], "total": total_of(rows)})


def total_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of every count."""
    return {name: sum(row[name] for row in rows) for name in COUNTS}


def as_csv(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> str:
    """With a head, even when there is no row."""
    columns = [*columns_of(by), *COUNTS]
    return csv_lines([columns, *([row[name] for name in columns] for row in rows)])
