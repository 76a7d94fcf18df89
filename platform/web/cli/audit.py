"""`loraplex audit`: the log of who did what, and whether it is what was written."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..api.audit_export import entry_json
from ..settings import Settings
from .opened import opened_database
from .output import Json, print_json

app = typer.Typer(help="The audit log.", no_args_is_help=True)
console = Console(highlight=False)


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


@app.command("list")
def list_all(limit: Annotated[int, typer.Option(min=1)] = 50, as_json: Json = False) -> None:
    """List the newest rows of all tenants."""
    with opened_database(Settings()) as registry:
        entries = registry.audit.entries(limit)
    if as_json:
        print_json([entry_json(entry) for entry in entries])
        return
    table = Table("id", "at (UTC)", "tenant", "actor", "action", "subject")
    for entry in entries:
        moment = f"{entry.at:%Y-%m-%d %H:%M:%S}"
        table.add_row(str(entry.id), moment, entry.tenant or "–", entry.actor, entry.action, entry.subject)
    console.print(table)
