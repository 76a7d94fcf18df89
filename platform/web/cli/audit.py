"""`loraplex audit`: the log of who did what, and whether it is what was written."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.audit import AuditEntry, AuditFilter
from loraplex.registry.registry import Registry

from ..api.audit_export import Format, entry_json, parts_of
from ..api.audit_filter import filter_of
from ..errors import ApiError
from ..settings import Settings
from .opened import opened_database
from .output import Json, print_json

app = typer.Typer(help="The audit log.", no_args_is_help=True)
console = Console(highlight=False)
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Of one tenant; by default of all, and the server.")]
Actor = Annotated[str, typer.Option(metavar="PART", help="Who did it: a part of it, such as user:admin.")]
Action = Annotated[str, typer.Option(metavar="PART", help="What was done: a part of it, such as key.create.")]
Subject = Annotated[str, typer.Option(metavar="PART", help="To what: a part of its name.")]
First = Annotated[str, typer.Option("--from", metavar="DAY", help="First day in UTC, as 2026-11-22.")]
Last = Annotated[str, typer.Option("--to", metavar="DAY", help="Last day.")]
Before = Annotated[int | None, typer.Option(metavar="ID", min=1, help="Only rows older than this one.")]


@app.command()
def verify(
    head: Annotated[str, typer.Option(metavar="HASH", help="A head that was kept: it must be in the chain.")] = "",
    as_json: Json = False,
) -> None:
    """Compute the chain of hashes over all rows; exit code 1 when it is broken."""
    with opened_database(Settings()) as registry:
        verdict = registry.audit.verify(head or None)
    if as_json:
        print_json(asdict(verdict))
    elif verdict.problem is None:
        console.print(f"[green]✓[/] {verdict.rows:,} rows are what was written; head {verdict.head}", soft_wrap=True)
    else:
        console.print(f"[red]{verdict.problem}[/]", soft_wrap=True)
    if verdict.problem is not None:
        raise typer.Exit(1)


@app.command("list", epilog="Example: loraplex audit list --actor key: --action adapter --from 2026-11-01")
def list_all(
    actor: Actor = "",
    action: Action = "",
    subject: Subject = "",
    first: First = "",
    to: Last = "",
    tenant: Tenant = "",
    before: Before = None,
    limit: Annotated[int, typer.Option(min=1, help="Most rows.")] = 50,
    as_json: Json = False,
) -> None:
    """List the newest rows, those that are asked for."""
    with opened_database(Settings()) as registry:
        wanted = _wanted(registry, tenant, actor, action, subject, first, to)
        entries = registry.audit.search(wanted, limit, before)
    if as_json:
        print_json([entry_json(entry) for entry in entries])
    elif not entries:
        print("The audit log has no such rows.")
    else:
        _print_table(entries)


@app.command(epilog="Example: loraplex audit export --from 2026-11-01 --to 2026-11-30 > november.csv")
def export(
    actor: Actor = "",
    action: Action = "",
    subject: Subject = "",
    first: First = "",
    to: Last = "",
    tenant: Tenant = "",
    format: Annotated[str, typer.Option(help="csv, or jsonl: a JSON object on each line.")] = "csv",
) -> None:
    """Print all rows that are asked for, newest first, as the API's file has them."""
    form = _format(format)
    with opened_database(Settings()) as registry:
        for part in parts_of(registry.audit, _wanted(registry, tenant, actor, action, subject, first, to), form):
            sys.stdout.write(part)


def _wanted(registry: Registry, tenant: str, actor: str, action: str, subject: str, first: str, to: str) -> AuditFilter:
    """Raises ValueError, RegistryError for a tenant that there is not."""
    if tenant:
        registry.tenants.get(tenant)
    try:
        return filter_of(tenant or None, actor, action, subject, first, to)
    except ApiError as error:
        raise ValueError(error.message) from None


def _format(text: str) -> Format:
    match text:
        case "csv" | "jsonl":
            return text
    raise ValueError(f"--format is csv or jsonl; got {text[:40]!a}.")


def _print_table(entries: Sequence[AuditEntry]) -> None:
    table = Table("id", "at (UTC)", "tenant", "actor", "action", "subject")
    for entry in entries:
        moment = f"{entry.at:%Y-%m-%d %H:%M:%S}"
        style = None if entry.intact else "red"
        table.add_row(str(entry.id), moment, entry.tenant or "–", entry.actor, entry.action, entry.subject, style=style)
    console.print(table)
    changed = [str(entry.id) for entry in entries if not entry.intact]
    if changed:
        numbers = ", ".join(changed[:5]) + (" …" if len(changed) > 5 else "")
        words = f"Not what was written: {numbers}. `loraplex audit verify` says where the chain breaks first."
        console.print(f"[red]{words}[/]", soft_wrap=True)
