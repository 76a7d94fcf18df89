"""`loraplex audit`: the log of who did what, and whether it is what was written, here or over a server's API."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from ...api.audit_file import Format
from ..api_client import Key
from ..output import Fields, Json, print_json
from ..remote import At, remote_of
from .audit_places import AuditQuery, Everyone, chain_of, export_of, listed

app = typer.Typer(help="The audit log.", no_args_is_help=True)
console = Console(highlight=False)
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
def verify(
    head: Annotated[str, typer.Option(metavar="HASH", help="A head stored earlier: it must be in the chain.")] = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Verify the hash chain over all rows. Exit code 1 if it is broken."""
    chain = chain_of(remote_of(server, key), head)
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
def list_all(
    actor: Actor = "",
    action: Action = "",
    subject: Subject = "",
    first: First = "",
    to: Last = "",
    tenant: Tenant = "",
    everyone: Everyone = False,
    before: Before = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="Maximum number of rows.")] = 50,
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List the newest rows that match."""
    asked = AuditQuery(tenant, everyone, actor, action, subject, first, to)
    rows = listed(remote_of(server, key), asked, limit, before)
    if as_json:
        print_json(rows)
    elif not rows:
        print("No matching rows in the audit log.")
    else:
        _print_table(rows)


@app.command(epilog="Example: loraplex audit export --from 2026-11-01 --to 2026-11-30 > november.csv")
def export(
    actor: Actor = "",
    action: Action = "",
    subject: Subject = "",
    first: First = "",
    to: Last = "",
    tenant: Tenant = "",
    everyone: Everyone = False,
    format: Annotated[str, typer.Option(help="csv, or jsonl (one JSON object per line).")] = "csv",
    server: At = "",
    key: Key = "",
) -> None:
    """Print all rows that match, newest first, in the API's export format."""
    asked = AuditQuery(tenant, everyone, actor, action, subject, first, to)
    for part in export_of(remote_of(server, key), asked, _format(format)):
        sys.stdout.write(part)


def _format(text: str) -> Format:
    match text:
        case "csv" | "jsonl":
            return text
    raise ValueError(f"--format must be csv or jsonl; got {text[:40]!a}.")


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
