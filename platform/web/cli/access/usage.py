"""`loraplex usage`: what was used, from the ledger, here or over a server's API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.usage.ledger import COUNTS
from loraplex.registry.usage.usage import usage_query

from ...settings.settings import Settings
from ...usage.usage_csv import csv_head, csv_rows, total_of, versions_for, with_versions
from ..api_client import Key
from ..opened import opened_database
from ..output import Json, Tenant, print_json
from ..remote import At, remote_and_tenant


def usage(
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="First day in UTC, such as 2026-11-22.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="DAY", help="Last day.")] = "",
    key_prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Only this key.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Only this user.")] = "",
    adapter: Annotated[str, typer.Option(metavar="NAME", help="Only this adapter.")] = "",
    by: Annotated[str, typer.Option(help="Group by: day, hour, key, adapter.")] = "day,key,adapter",
    as_csv_file: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Print requests and tokens by day, key and adapter version."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    query = usage_query(tenant, first, to, key_prefix, user, adapter, by)
    rows: Sequence[Mapping[str, Any]]
    if remote is not None:
        asked = {"from": first, "to": to, "key": key_prefix, "user": user, "adapter": adapter, "by": by}
        rows = remote.ask("GET", "/usage", **asked)["data"]
    else:
        with opened_database(Settings()) as registry:
            registry.tenants.get(tenant)
            rows = with_versions(registry.usage.sums(query), versions_for(registry.usage, query))
    if as_json:
        print_json({"data": [dict(row) for row in rows], "total": total_of(rows)})
    elif as_csv_file:
        print(csv_head(query) + csv_rows(rows, query), end="")
    elif not rows:
        print("No usage.")
    else:
        Console(highlight=False, markup=False).print(_table(rows))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Without counts that are 0 in every row, so that it fits on a screen."""
    shown = [name for name in rows[0] if name not in COUNTS or any(row[name] for row in rows)]
    table = Table(*(name.removesuffix("_tokens").removeprefix("adapter_") for name in shown), box=None)
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in shown))
    return table


def _cell(name: str, value: object) -> str:
    if name == "adapter_digest":
        return str(value)[:12]
    return f"{value:,}" if name in COUNTS else "" if value is None else str(value)
