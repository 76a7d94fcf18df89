"""What is said of an adapter that was added, or refused: the same for both ways in, in words or JSON."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape

from loraplex.registry.report import Finding, Report

from ..output import Fields, print_json

MARKS: Final = {"pass": "[green]pass[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}

console: Final = Console(highlight=False)


def tell_added(added: Fields, as_json: bool, **more: Any) -> None:
    """`added`: as the API answers it. `more`: what programs are told beside it."""
    version, findings = added["version"], added["report"]["findings"]
    if as_json:
        head = {"name": added["name"], "version": version["number"], "digest": version["digest"]}
        told = {name: added[name] for name in ("created", "share", "moves", "message")}
        print_json({**head, **told, **more, "findings": findings})
        return
    print_findings(msgspec.convert(findings, list[Finding]))
    word = "registered as" if added["created"] else "is already"
    console.print(f"[green]✓[/] {added['name']} {word} version {version['number']}, digest {version['digest'][:12]}")
    console.print(added["message"], markup=False, soft_wrap=True)


def tell_refusal(name: str, report: Report, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "created": False, "findings": msgspec.to_builtins(report.findings)})
        return
    print_findings(report.findings)
    console.print(f"[red]{name} was not registered.[/]")


def print_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        console.print(f"  {MARKS[finding.level]}  {escape(finding.message)}", soft_wrap=True)
        if finding.remedy:
            console.print(f"        [dim]{escape(finding.remedy)}[/]", soft_wrap=True)
