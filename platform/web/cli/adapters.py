"""`loraplex adapters`: add, list, show, alias and remove, with or without a running server."""

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.errors import PreflightRefused
from loraplex.registry.names import LATEST, parse_reference
from loraplex.registry.registry import Registry
from loraplex.registry.report import Finding, Report
from loraplex.registry.views import Adapter, Version

from ..registration import add_from_folder
from ..settings import Settings
from ..units import age_words, size_words
from . import profiles
from .opened import opened_registry, served_path

ACTOR = "cli"
MARKS = {"pass": "[green]pass[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}

app = typer.Typer(help="Add, list, show, alias and remove adapters. A running server follows within a second.")
console = Console(highlight=False)
app.command(epilog="Example: loraplex adapters profile support --file ./profile.json")(profiles.profile)
Reference = Annotated[str, typer.Argument(metavar="NAME[@VERSION]")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(epilog="Example: loraplex adapters add support ./runs/support-r16")
def add(name: str, folder: Path, as_json: Json = False) -> None:
    """Check the adapter in FOLDER (PEFT layout) and register it as NAME."""
    settings = Settings()
    with opened_registry(settings) as (registry, base):
        try:
            certify = served_path(settings, base).digest if settings.certify_uploads else None
            tokenizers = settings.adapter_tokenizers
            added, report = add_from_folder(registry, base, name, folder, ACTOR, tokenizers, certify)
        except PreflightRefused as error:
            _tell_refusal(name, error.report, as_json)
            raise typer.Exit(1) from None
    if as_json:
        version = {"name": name, "version": added.version.number, "digest": added.version.digest}
        _print_json({**version, "created": added.created, **_findings_json(report)})
        return
    print_findings(report.findings)
    word = "registered as" if added.created else "already is"
    console.print(f"[green]✓[/] {name} {word} version {added.version.number}, digest {added.version.digest[:12]}")


@app.command("list")
def list_all(as_json: Json = False) -> None:
    """List the adapters."""
    with opened_registry(Settings()) as (registry, _):
        adapters = registry.adapters.list()
    if as_json:
        _print_json([_as_json(adapter) for adapter in adapters])
        return
    if not adapters:
        console.print("No adapters yet. Add one with: loraplex adapters add NAME FOLDER")
        return
    table = Table("name", "version", "state", "rank", "size", "targets", "added")
    for adapter in adapters:
        version = adapter.current() or adapter.versions[-1]
        table.add_row(
            adapter.name,
            str(version.number),
            _state(adapter, version),
            str(version.rank),
            size_words(version.size),
            ", ".join(version.target_modules),
            age_words(version.created_at),
        )
    console.print(table)


@app.command()
def show(reference: Reference, as_json: Json = False) -> None:
    """Show one adapter: its versions and what the checks said of one, which is the newest unless it is named."""
    with opened_registry(Settings()) as (registry, _):
        adapter, version = _found(registry, reference)
        report = registry.adapters.report(f"{adapter.name}@{version.number}")
    if as_json:
        _print_json(_as_json(adapter))
        return
    console.print(f"[bold]{adapter.name}[/] version {version.number}, {_state(adapter, version)}")
    console.print(f"digest   {version.digest}")
    console.print(f"rank     {version.rank}, alpha {version.alpha:g}, {version.parameters:,} parameters")
    console.print(f"targets  {', '.join(version.target_modules)}")
    print_findings(report.findings)


@app.command()
def remove(reference: Reference, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Remove an adapter, or one version of it. Requests that run with it finish."""
    with opened_registry(Settings()) as (registry, _):
        _found(registry, reference)
        if not yes:
            typer.confirm(f"Remove {reference if '@' in reference else f'{reference} and its versions'}?", abort=True)
        registry.adapters.remove(reference, actor=ACTOR)
    console.print(f"[green]✓[/] {reference} removed")


@app.command(epilog="Example: loraplex adapters alias support@3 prod")
def alias(reference: Reference, alias: str) -> None:
    """Let NAME@ALIAS mean the version that NAME[@VERSION] means now."""
    parsed = parse_reference(reference)
    selector = LATEST if parsed.selector is None else parsed.selector
    with opened_registry(Settings()) as (registry, _):
        adapter = registry.adapters.routes.set(parsed.name, alias, selector, actor=ACTOR)
    console.print(f"[green]✓[/] {adapter.name}@{alias} means version {adapter.aliases[alias]}")


def _found(registry: Registry, reference: str) -> tuple[Adapter, Version]:
    """The adapter, and the version that is meant: for a bare name what it means, else the newest."""
    name, at, _ = reference.partition("@")
    adapter = registry.adapters.get(name)
    return adapter, registry.adapters.version(reference) if at else adapter.current() or adapter.versions[-1]


def _tell_refusal(name: str, report: Report, as_json: bool) -> None:
    if as_json:
        _print_json({"name": name, "created": False, **_findings_json(report)})
        return
    print_findings(report.findings)
    console.print(f"[red]{name} was not registered.[/]")


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _findings_json(report: Report) -> dict[str, Any]:
    return {"findings": msgspec.to_builtins(report.findings)}


def print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        console.print(f"  {MARKS[finding.level]}  {finding.message}", soft_wrap=True)
        if finding.remedy:
            console.print(f"        [dim]{finding.remedy}[/]", soft_wrap=True)


def _state(adapter: Adapter, version: Version) -> str:
    if version.broken:
        return f"broken: {version.broken}"
    return "enabled" if adapter.enabled and version.enabled else "disabled"


def _as_json(adapter: Adapter) -> dict[str, Any]:
    return {
        "name": adapter.name,
        "enabled": adapter.enabled,
        "pinned": adapter.pinned,
        "aliases": dict(adapter.aliases),
        "versions": [
            {
                "version": version.number,
                "digest": version.digest,
                "rank": version.rank,
                "alpha": version.alpha,
                "target_modules": list(version.target_modules),
                "tokenizer_digest": version.tokenizer_digest,
                "size": version.size,
                "enabled": version.enabled,
                "created_at": version.created_at.isoformat(),
            }
            for version in adapter.versions
        ],
    }
