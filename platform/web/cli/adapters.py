"""`loraplex adapters`: add, and here or over a server's API list, show, alias and remove."""

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loraplex.registry.errors import PreflightRefused
from loraplex.registry.names import LATEST, parse_reference
from loraplex.registry.report import Finding, Report

from ..settings import Settings
from ..units import age_words, size_words
from .adapter_places import adapter_and_version, all_adapters, current_version, remove_adapter, report_of
from .alias_places import changed
from .api_client import Key
from .later import add_word
from .opened import opened_registry, served_path
from .output import ACTOR, Fields, Json, print_json, tell
from .remote import At, remote_of

if TYPE_CHECKING:
    from loraplex.registry.registry import Registry
    from loraplex.registry.views import Adapter

MARKS = {"pass": "[green]pass[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}

app = typer.Typer(help="Add, list, show, alias and remove adapters. A running server follows within a second.")
console = Console(highlight=False)
add_word(
    app,
    "profile",
    "profiles",
    "Show, set or remove the serving profile of a version; of the one that the name means unless another is named.",
    "Example: loraplex adapters profile support --file ./profile.json",
)
Reference = Annotated[str, typer.Argument(metavar="NAME[@VERSION]")]


@app.command(epilog="Example: loraplex adapters add support ./runs/support-r16")
def add(name: str, folder: Path, as_json: Json = False) -> None:
    """Check the adapter in FOLDER (PEFT layout) and register it as NAME, on the database here."""
    if os.environ.get("LORAPLEX_SERVER"):
        raise ValueError(
            "`adapters add` works on the database here, but LORAPLEX_SERVER names a server. "
            f"Send it there with: loraplex adapters push {folder} --name {name}"
        )
    from ..effect_proof import NOT_HERE
    from ..registration import add_from_folder

    settings = Settings()
    beside = [NOT_HERE] if settings.preflight_logits else []
    with opened_registry(settings) as (registry, base):
        try:
            certify = served_path(settings, base).digest if settings.certify_uploads else None
            tokenizers = settings.adapter_tokenizers
            added, report = add_from_folder(registry, base, name, folder, ACTOR, tokenizers, certify, beside)
        except PreflightRefused as error:
            _tell_refusal(name, error.report, as_json)
            raise typer.Exit(1) from None
    if as_json:
        version = {"name": name, "version": added.version.number, "digest": added.version.digest}
        print_json({**version, "created": added.created, **_findings_json(report)})
        return
    print_findings(report.findings)
    word = "registered as" if added.created else "already is"
    console.print(f"[green]✓[/] {name} {word} version {added.version.number}, digest {added.version.digest[:12]}")


@app.command("list")
def list_all(server: At = "", key: Key = "", as_json: Json = False) -> None:
    """List the adapters."""
    adapters = all_adapters(remote_of(server, key))
    if as_json:
        print_json(adapters)
        return
    if not adapters:
        word = "push FOLDER --name NAME" if server else "add NAME FOLDER"
        console.print(f"No adapters yet. Add one with: loraplex adapters {word}")
        return
    table = Table("name", "version", "state", "rank", "size", "targets", "added")
    for adapter in adapters:
        version = current_version(adapter)
        table.add_row(
            adapter["name"],
            str(version["number"]),
            _state(adapter, version),
            str(version["rank"]),
            size_words(version["size"]),
            ", ".join(version["target_modules"]),
            age_words(datetime.fromisoformat(version["created_at"])),
        )
    console.print(table, markup=False)


@app.command()
def show(reference: Reference, server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Show one adapter: its versions and what the checks said of one, which is the newest unless it is named."""
    remote = remote_of(server, key)
    adapter, version = adapter_and_version(remote, reference)
    if as_json:
        print_json(adapter)
        return
    report = report_of(remote, f"{adapter['name']}@{version['number']}")
    console.print(f"[bold]{adapter['name']}[/] version {version['number']}, {escape(_state(adapter, version))}")
    console.print(f"digest   {version['digest']}")
    console.print(f"rank     {version['rank']}, alpha {version['alpha']:g}, {version['parameters']:,} parameters")
    console.print(f"targets  {', '.join(version['target_modules'])}")
    print_findings(report.findings)


@app.command()
def remove(
    reference: Reference,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Remove an adapter, or one version of it. Requests that run with it finish."""
    remote = remote_of(server, key)
    adapter_and_version(remote, reference)
    if not yes:
        typer.confirm(
            f"Remove {reference if '@' in reference else f'{reference} and its versions'}?", abort=True, err=True
        )
    remove_adapter(remote, reference)
    tell({"removed": reference}, f"{reference} removed", as_json)


@app.command(epilog="Example: loraplex adapters alias support@3 prod")
def alias(reference: Reference, alias: str, server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Let NAME@ALIAS mean the version that NAME[@VERSION] means now."""
    parsed = parse_reference(reference)
    selector = LATEST if parsed.selector is None else parsed.selector

    def here(registry: "Registry") -> "Adapter":
        return registry.adapters.routes.set(parsed.name, alias, selector, actor=ACTOR)

    route = changed(remote_of(server, key), parsed.name, alias, ("PUT", "", {"version": selector}), here)
    tell(route, f"{parsed.name}@{alias} means version {route['version']}", as_json)


add_word(
    app,
    "push",
    "push",
    "Send the adapter in FOLDER (PEFT layout) to a server and register it; go on where a connection broke.",
    "Example: loraplex adapters push ./runs/support --name support --progress",
)


def _tell_refusal(name: str, report: Report, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "created": False, **_findings_json(report)})
        return
    print_findings(report.findings)
    console.print(f"[red]{name} was not registered.[/]")


def _findings_json(report: Report) -> dict[str, Any]:
    return {"findings": msgspec.to_builtins(report.findings)}


def print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        console.print(f"  {MARKS[finding.level]}  {escape(finding.message)}", soft_wrap=True)
        if finding.remedy:
            console.print(f"        [dim]{escape(finding.remedy)}[/]", soft_wrap=True)


def _state(adapter: Fields, version: Fields) -> str:
    if version["error"]:
        return f"broken: {version['error']}"
    return "enabled" if adapter["enabled"] and version["enabled"] else "disabled"
