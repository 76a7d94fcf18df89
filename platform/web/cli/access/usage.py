"""`loraplex usage`: what was used, from the ledger."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.usage.ledger import COUNTS

from ..admin_api import AdminApi, with_api
from ..output import Json, print_json

MOST_ROWS: Final = 1_000_000
"""That the operator may ask for."""


@with_api
def usage(
    api: AdminApi,
    first: Annotated[str, typer.Option("--from", metavar="DAY", help="First day in UTC, such as 2026-11-22.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="DAY", help="Last day.")] = "",
    key_prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Only this key.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Only this user.")] = "",
    adapter: Annotated[str, typer.Option(metavar="NAME", help="Only this adapter.")] = "",
    by: Annotated[str, typer.Option(help="Group by: day, hour, key, adapter.")] = "day,key,adapter",
    as_csv_file: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
) -> None:
    """Print requests and tokens by day, key and adapter version."""
    asked = {"from": first, "to": to, "key": key_prefix, "user": user, "adapter": adapter, "by": by}
    if api.own:
        asked["limit"] = str(MOST_ROWS)
    if as_csv_file and not as_json:
        for part in api.text("/usage", format="csv", **asked):
            sys.stdout.write(part)
        return
    found = api.ask("GET", "/usage", **asked)
    if as_json:
        print_json(found)
    elif not found["data"]:
        print("No usage.")
    else:
        Console(highlight=False, markup=False).print(_table(found["data"]))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Without counts that are 0 in every row, so that it fits on a screen."""
    counts = [name for name in COUNTS if any(row[name] for row in rows)]
    shown = [*(name for name in rows[0] if name not in COUNTS), *counts]
    table = Table(*(name.removesuffix("_tokens").removeprefix("adapter_") for name in shown), box=None)
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in shown))
    return table


def _cell(name: str, value: object) -> str:
    if name == "adapter_digest":
        return str(value)[:12]
    return f"{value:,}" if name in COUNTS else "" if value is None else str(value)
