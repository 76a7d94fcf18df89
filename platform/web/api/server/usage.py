"""/api/v1/usage: what was used, by day or hour, key and adapter version; as JSON or CSV."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from loraplex.registry.errors import InvalidQuery
from loraplex.registry.usage.sums import UsageCounts, UsageSum, total_of
from loraplex.registry.usage.usage import usage_query

from ...access.permissions import Permission
from ...endpoints.dependencies import CallerOf, FirstDay, RegistryOf
from ...http.errors import forbidden, invalid
from ...usage.usage_csv import csv_head, csv_rows, versions_for, with_versions

MOST_ROWS: Final = 10_000
Text = Annotated[str, Query(max_length=600)]

router = APIRouter(tags=["Usage"])


class UsageSums(msgspec.Struct, frozen=True):
    data: Sequence[UsageSum]
    total: UsageCounts


@router.get("/api/v1/usage")
async def get_usage(
    registry: RegistryOf,
    caller: CallerOf,
    first: FirstDay = "",
    to: str = "",
    key: Text = "",
    user: Text = "",
    adapter: Text = "",
    by: str = "day,key,adapter",
    limit: Annotated[int, Query(ge=1, le=1_000_000)] = MOST_ROWS,
    format: Literal["json", "csv"] = "json",
) -> Response:
    """Sums of the days `from` to `to` (UTC, both included), told apart by what `by` names: day, hour, key, adapter.

    `key` is a prefix, `adapter` a name. A request that ended less than a second ago may be missing. A report of more
    than `limit` rows is refused; only the operator may raise it.
    """
    if limit > MOST_ROWS and not caller.allows(Permission.OPERATE):
        raise forbidden(f"Only the operator can ask for more than {MOST_ROWS:,} rows. Ask for fewer days.")
    try:
        query = usage_query(caller.tenant, first, to, key, user, adapter, by)
    except InvalidQuery as error:
        raise invalid(str(error), error.field) from None
    if caller.only is not None:
        query = replace(query, actor=caller.actor)
    found = await asyncio.to_thread(registry.usage.sums, query, limit + 1)
    rows = with_versions(found, query, await asyncio.to_thread(versions_for, registry.usage, query))
    if len(rows) > limit:
        raise invalid(f"The report has more than {limit:,} rows. Ask for fewer days, one key or one adapter.", "from")
    if format == "csv":
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        return Response(csv_head(query) + csv_rows(rows, query), media_type="text/csv", headers=headers)
    return JSONResponse(msgspec.to_builtins(UsageSums(rows, total_of(rows))))
