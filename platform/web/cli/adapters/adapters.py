"""`loraplex adapters`: list, show, alias and remove, on a server or on the database here."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loraplex.registry.names import LATEST, parse_reference

from ...settings.running_server import ACTOR
from ...units import age_words, size_words
from ..api_client import Key
from ..later import add_word
from ..output import Fields, Json, Tenant, print_json, print_table, tell
from ..remote import At, remote_and_tenant
from .adapter_places import adapter_and_version, all_adapters, current_version, remove_adapter, report_of
from .added import print_findings
from .alias_places import changed

if TYPE_CHECKING:
    from loraplex.registry.adapters.views import Adapter
    from loraplex.registry.registry import Registry

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
def list_all(wide: Wide = False, tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False) -> None:
    """List the adapters, one per line."""
    adapters = all_adapters(*remote_and_tenant(server, key, tenant))
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
        table.add_row(*cells, version["digest"][:12], ", ".join(version["target_modules"]))
    return table


def _used(adapter: Fields) -> str:
    """Only a server knows."""
    last = adapter.get("last_used_at")
    return age_words(datetime.fromisoformat(last)) if last else "–"


def _facts(version: Fields) -> tuple[str, str, str]:
    added = age_words(datetime.fromisoformat(version["created_at"]))
    return str(version["rank"]), size_words(version["size"]), added


@app.command()
def show(reference: Reference, tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Show an adapter: its versions, and the check results of one (default: the newest)."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    adapter, version = adapter_and_version(remote, reference, tenant)
    if as_json:
        print_json(adapter)
        return
    report = report_of(remote, f"{adapter['name']}@{version['number']}", tenant)
    console.print(f"[bold]{adapter['name']}[/] version {version['number']}, {escape(_state(adapter, version))}")
    console.print(f"digest   {version['digest']}")
    console.print(f"rank     {version['rank']}, alpha {version['alpha']:g}, {version['parameters']:,} parameters")
    console.print(f"targets  {', '.join(version['target_modules'])}")
    print_findings(report.findings)


@app.command()
def remove(
    reference: Reference,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Remove an adapter, or one version of it. Running requests finish."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    adapter_and_version(remote, reference, tenant)
    if not yes:
        typer.confirm(
            f"Remove {reference if '@' in reference else f'{reference} and its versions'}?", abort=True, err=True
        )
    remove_adapter(remote, reference, tenant)
    tell({"removed": reference}, f"{reference} removed", as_json)


@app.command(epilog="Example: loraplex adapters alias support@3 prod")
def alias(
    reference: Reference, alias: str, tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False
) -> None:
    """Point NAME@ALIAS at the current version of NAME, or at NAME@VERSION."""
    parsed = parse_reference(reference)
    remote, tenant = remote_and_tenant(server, key, tenant)
    selector = LATEST if parsed.selector is None else parsed.selector

    def here(registry: "Registry") -> "Adapter":
        return registry.adapters.routes.set(parsed.name, alias, selector, actor=ACTOR, tenant=tenant)

    route = changed(remote, parsed.name, alias, ("PUT", "", {"version": selector}), here, tenant)
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
