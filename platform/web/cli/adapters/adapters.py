"""`loraplex adapters`: list, show, alias and remove."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loraplex.registry.names import LATEST, parse_reference
from loraplex.registry.report import Finding

from ...targets import grouped
from ...units import age_words, size_words
from ..admin_api import AdminApi, with_api
from ..later import add_word
from ..output import Fields, Json, print_json, print_table, tell
from .added import print_findings
from .alias_change import changed
from .versions import adapter_and_version, adapter_path, current_version

app = typer.Typer(help="Add, list, show, alias and remove adapters. A running server follows within a second.")
console = Console(highlight=False)
add_word(
    app,
    "add",
    "adapters.add",
    "Check the adapter in FOLDER (PEFT layout) and register it as NAME, with or without a running server.",
    "Example: loraplex adapters add support ./runs/support-r16",
)
add_word(
    app,
    "profile",
    "adapters.profiles",
    "Show, set or remove the serving profile of a version (default: the current one).",
    "Example: loraplex adapters profile support --file ./profile.json",
)
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns in full width.")]
Reference = Annotated[str, typer.Argument(metavar="NAME[@VERSION]")]


@app.command("list")
@with_api
def list_all(api: AdminApi, wide: Wide = False, as_json: Json = False) -> None:
    """List the adapters, one per line."""
    adapters = api.ask("GET", "/adapters")["data"]
    if as_json:
        print_json(adapters)
        return
    if not adapters:
        console.print("No adapters yet. Add one with: loraplex adapters add NAME FOLDER")
        return
    print_table(_wide(adapters) if wide else _narrow(adapters), wide)


def _narrow(adapters: Sequence[Fields]) -> Table:
    """A line each, also where the terminal has 80 columns."""
    table = Table("name", "version", "state", "rank", "size", "added", box=None, padding=(0, 2, 0, 0))
    for adapter in adapters:
        version = current_version(adapter)
        state = _state(adapter, version).partition(":")[0]
        table.add_row(adapter["name"], str(version["number"]), state, *_facts(version))
    return table


def _wide(adapters: Sequence[Fields]) -> Table:
    table = Table(*("name", "version", "state", "rank", "size", "added", "used", "digest", "targets"), box=None)
    for adapter in adapters:
        version = current_version(adapter)
        cells = adapter["name"], str(version["number"]), _state(adapter, version), *_facts(version), _used(adapter)
        table.add_row(*cells, version["digest"][:12], ", ".join(grouped(version["target_modules"])))
    return table


def _used(adapter: Fields) -> str:
    """Only a server knows."""
    last = adapter.get("last_used_at")
    return age_words(datetime.fromisoformat(last)) if last else "–"


def _facts(version: Fields) -> tuple[str, str, str]:
    added = age_words(datetime.fromisoformat(version["created_at"]))
    return str(version["rank"]), size_words(version["size"]), added


@app.command()
@with_api
def show(api: AdminApi, reference: Reference, as_json: Json = False) -> None:
    """Show an adapter: its versions, and the check results of one (default: the newest)."""
    adapter, version = adapter_and_version(api, reference)
    if as_json:
        print_json(adapter)
        return
    pinned = f"{adapter['name']}@{version['number']}"
    report = api.ask("GET", f"{adapter_path(pinned)}/report")
    console.print(f"[bold]{adapter['name']}[/] version {version['number']}, {escape(_state(adapter, version))}")
    console.print(f"digest   {version['digest']}")
    console.print(f"rank     {version['rank']}, alpha {version['alpha']:g}, {version['parameters']:,} parameters")
    console.print(f"targets  {', '.join(grouped(version['target_modules']))}")
    print_findings(msgspec.convert(report["findings"], list[Finding]))


@app.command()
@with_api
def remove(
    api: AdminApi,
    reference: Reference,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Remove an adapter, or one version of it. Running requests finish."""
    adapter_and_version(api, reference)
    if not yes:
        typer.confirm(
            f"Remove {reference if '@' in reference else f'{reference} and its versions'}?", abort=True, err=True
        )
    api.ask("DELETE", adapter_path(reference))
    tell({"removed": reference}, f"{reference} removed", as_json)


@app.command(epilog="Example: loraplex adapters alias support@3 prod")
@with_api
def alias(api: AdminApi, reference: Reference, alias: str, as_json: Json = False) -> None:
    """Point NAME@ALIAS at the current version of NAME, or at NAME@VERSION."""
    parsed = parse_reference(reference)
    selector = LATEST if parsed.selector is None else parsed.selector
    route = changed(api, parsed.name, alias, "PUT", "", {"version": selector})
    tell(route, f"{parsed.name}@{alias} points at version {route['version']}", as_json)


add_word(
    app,
    "push",
    "adapters.push",
    "Upload the adapter in FOLDER (PEFT layout) to a server and register it. Resumes after a lost connection.",
    "Example: loraplex adapters push ./runs/support --name support --progress",
)


def _state(adapter: Fields, version: Fields) -> str:
    if version["error"]:
        return f"broken: {version['error']}"
    return "enabled" if adapter["enabled"] and version["enabled"] else "disabled"
