"""`loraplex audit`: the log of who did what, and whether it is what was written."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from ..admin_api import AdminApi, with_operators_api
from ..output import Fields, Json, print_json

app = typer.Typer(help="The audit log.", no_args_is_help=True)
console = Console(highlight=False)
PAGE: Final = 1000
"""Rows that the API answers at once."""
Everyone = Annotated[
    bool, typer.Option("--everyone", help="All tenants and the server itself (default on the local database).")
]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Only this tenant (default over the API: the key's).")]
Actor = Annotated[str, typer.Option(metavar="PART", help="Part of the actor, such as user:admin.")]
Action = Annotated[str, typer.Option(metavar="PART", help="Part of the action, such as key.create.")]
Subject = Annotated[str, typer.Option(metavar="PART", help="Part of the target's name.")]
First = Annotated[str, typer.Option("--from", metavar="DAY", help="First day in UTC, such as 2026-11-22.")]
Last = Annotated[str, typer.Option("--to", metavar="DAY", help="Last day.")]
MOST: Final = 2**63 - 1
"""What a database takes as a number."""
Before = Annotated[int | None, typer.Option(metavar="ID", min=1, max=MOST, help="Only rows older than this one.")]


@app.command()
@with_operators_api
def verify(
    api: AdminApi,
    head: Annotated[str, typer.Option(metavar="HASH", help="A head stored earlier: it must be in the chain.")] = "",
    as_json: Json = False,
) -> None:
    """Verify the hash chain over all rows. Exit code 1 if it is broken."""
    kept = {"head": head} if head else {}
    chain = api.ask("GET", "/audit", limit="1", verify="true", **kept)["chain"]
    if as_json:
        print_json(chain)
    elif not chain["intact"]:
        without_such_head = ", or does not contain this head" if head else ""
        untold = f"The audit log was altered{without_such_head}. The server's operator can see where."
        problem = chain.get("problem", untold)
        console.print(f"[red]{problem}[/]", soft_wrap=True)
    elif "rows" in chain:
        words = f"{chain['rows']:,} rows verified; head {chain['head']}"
        console.print(f"[green]✓[/] {words}", soft_wrap=True)
    else:
        console.print("[green]✓[/] all rows verified")
    if not chain["intact"]:
        raise typer.Exit(1)


@app.command("list", epilog="Example: loraplex audit list --actor key: --action adapter --from 2026-11-01")
@with_operators_api
def list_all(
    api: AdminApi,
    actor: Actor = "",
    action: Action = "",
    subject: Subject = "",
    first: First = "",
    to: Last = "",
    tenant: Tenant = "",
    everyone: Everyone = False,
    before: Before = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="Maximum number of rows.")] = 50,
    as_json: Json = False,
) -> None:
    """List the newest rows that match."""
    query = _query(api, tenant, everyone, actor=actor, action=action, subject=subject, **{"from": first, "to": to})
    rows = _listed(api, query, limit, before)
    if as_json:
        print_json(rows)
    elif not rows:
        print("No matching rows in the audit log.")
    else:
        _print_table(rows)


@app.command(epilog="Example: loraplex audit export --from 2026-11-01 --to 2026-11-30 > november.csv")
@with_operators_api
def export(
    api: AdminApi,
    actor: Actor = "",
    action: Action = "",
    subject: Subject = "",
    first: First = "",
    to: Last = "",
    tenant: Tenant = "",
    everyone: Everyone = False,
    format: Annotated[str, typer.Option(help="csv, or jsonl (one JSON object per line).")] = "csv",
) -> None:
    """Print all rows that match, newest first, in the API's export format."""
    if format not in ("csv", "jsonl"):
        raise ValueError(f"--format must be csv or jsonl; got {format[:40]!a}.")
    query = _query(api, tenant, everyone, actor=actor, action=action, subject=subject, **{"from": first, "to": to})
    for part in api.text("/audit/export", format=format, **query):
        sys.stdout.write(part)


def _query(api: AdminApi, tenant: str, everyone: bool, **asked: str) -> dict[str, str]:
    """Of all tenants where no key says of which."""
    if tenant and everyone:
        raise ValueError("--tenant and --everyone cannot be combined. Use one of them.")
    of_all = everyone or (api.own and not tenant)
    query = {"tenant": tenant, "everyone": "true" if of_all else "", **asked}
    return {name: text for name, text in query.items() if text}


def _listed(api: AdminApi, query: Mapping[str, str], limit: int, before: int | None) -> Sequence[Fields]:
    """Newest first."""
    rows: list[Fields] = []
    while len(rows) < limit:
        most = min(PAGE, limit - len(rows))
        older = {} if before is None else {"before": str(before)}
        page = api.ask("GET", "/audit", limit=str(most), **older, **query)["data"]
        rows += page
        if len(page) < most:
            break
        before = page[-1]["id"]
    return rows


def _print_table(rows: Sequence[Fields]) -> None:
    table = Table("id", "at (UTC)", "tenant", "actor", "action", "subject")
    for row in rows:
        moment = f"{datetime.fromisoformat(row['at']).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        names = row["tenant"] or "–", row["actor"], row["action"], row["subject"]
        table.add_row(str(row["id"]), moment, *names, style=None if row["intact"] else "red")
    console.print(table, markup=False)
    changed = [str(row["id"]) for row in rows if not row["intact"]]
    if changed:
        numbers = ", ".join(changed[:5]) + (" …" if len(changed) > 5 else "")
        words = f"Altered rows: {numbers}. `loraplex audit verify` shows where the chain first breaks."
        console.print(f"[red]{words}[/]", soft_wrap=True)
