"""`loraplex adapters push`: an adapter's folder to a server, over its API alone."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from loraplex.registry.names import check_adapter_name
from loraplex.registry.report import Report

from ..units import size_words
from .adapters import print_findings
from .api_client import LOCAL, ApiClient, Key, Refused, Server
from .output import Json, print_json
from .push_files import LocalFile, OnBytes, Sent, fields_of, local_files, send

console: Final = Console(highlight=False)


def push(
    folder: Path,
    name: Annotated[str, typer.Option(help="Of the adapter; by default the folder's.")] = "",
    progress: Annotated[bool, typer.Option("--progress", help="Show a bar with MB/s and the time left.")] = False,
    server: Server = LOCAL,
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Send the adapter in FOLDER (PEFT layout) to a server and register it; go on where a connection broke."""
    name = name or folder.resolve().name
    check_adapter_name(name)
    files = local_files(folder)
    with closing(ApiClient(server, key)) as client:
        try:
            sent = [_send(client, name, file, progress) for file in files]
            added = client.ask("POST", f"/api/v1/adapters/{name}/versions", json=fields_of(files))
        except httpx.TransportError as error:
            raise ValueError(f"{server} cannot be reached ({error}). What has arrived is kept: push again.") from None
        except Refused as refusal:
            if "report" not in refusal.body:
                raise
            _tell_refusal(name, refusal.body["report"], as_json)
            raise typer.Exit(1) from None
    _tell(added, sent, as_json)


def _send(client: ApiClient, name: str, file: LocalFile, progress: bool) -> Sent:
    with _bar(file, progress) as on_bytes:
        return send(client, name, file, on_bytes, _tell_wait)


def _tell_wait(reason: str) -> None:
    Console(stderr=True, highlight=False).print(f"Waiting: {reason}", style="yellow", markup=False, soft_wrap=True)


@contextmanager
def _bar(file: LocalFile, shown: bool) -> Iterator[OnBytes]:
    """On standard error, so that standard output stays what a program reads."""
    if not shown:
        yield lambda _done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(file.name, total=file.size)
        yield lambda done: progress.update(task, completed=done)


def _tell(added: dict[str, Any], sent: Sequence[Sent], as_json: bool) -> None:
    report, version = msgspec.convert(added["report"], Report), added["version"]
    if as_json:
        head = {"name": added["name"], "version": version["number"], "digest": version["digest"]}
        files = [_as_json(one) for one in sent]
        print_json({**head, "created": added["created"], "files": files, "findings": added["report"]["findings"]})
        return
    for one in sent:
        console.print(f"  {one.file.name}: {_words(one)}", soft_wrap=True)
    print_findings(report.findings)
    word = "registered as" if added["created"] else "already is"
    console.print(f"[green]✓[/] {added['name']} {word} version {version['number']}, digest {version['digest'][:12]}")


def _words(sent: Sent) -> str:
    size = size_words(sent.file.size)
    if sent.already_here:
        return f"already have these bytes ({size})"
    return f"{size} sent" if not sent.begun_at else f"{size}, gone on from {size_words(sent.begun_at)}"


def _as_json(sent: Sent) -> dict[str, Any]:
    file = sent.file
    told = {"already_here": sent.already_here, "begun_at": sent.begun_at}
    return {"file": file.name, "size": file.size, "sha256": file.sha256, **told}


def _tell_refusal(name: str, report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "created": False, "findings": report["findings"]})
        return
    print_findings(msgspec.convert(report, Report).findings)
    console.print(f"[red]{name} was not registered.[/]")
