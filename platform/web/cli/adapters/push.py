"""`loraplex adapters push`: an adapter's folder to a server, over its API alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from loraplex.registry.adapters.activation import Activation
from loraplex.registry.names import check_adapter_name
from loraplex.registry.report import Report

from ...units import size_words
from ..admin_api import AdminApi, with_api
from ..api_client import LOCAL, ApiClient, Refused
from ..output import Json
from .activation import Activate, Percent, ShareBy, activation_fields, activation_of
from .added import tell_added, tell_refusal
from .push_files import LocalFile, OnBytes, Sent, fields_of, local_files, send

KEPT: Final = " Uploaded data is kept: push again to resume."
console: Final = Console(highlight=False)


@with_api
def push(
    api: AdminApi,
    folder: Path,
    name: Annotated[str, typer.Option(help="Name of the adapter (default: the folder's).")] = "",
    activate: Activate = "",
    percent: Percent = 10,
    share_by: ShareBy = "request",
    progress: Annotated[
        bool, typer.Option("--progress", help="Show a progress bar with MB/s and the time left.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Upload the adapter in FOLDER (PEFT layout) to a server and register it. Resumes after a lost connection."""
    activation = activation_of(activate, percent, share_by)
    server = api if api.server else replace(api, server=LOCAL, own=False)
    send_folder(server, folder, name or folder.resolve().name, as_json, activation, progress)


def send_folder(
    api: AdminApi, folder: Path, name: str, as_json: bool, activation: Activation | None, progress: bool = False
) -> None:
    """Say what came of it; exit code 1 where it is refused. Without a server, the tokenizer's files are a trainer's,
    who saves them beside every adapter."""
    check_adapter_name(name)
    files = local_files(folder)
    with api.client("uploads", KEPT) as client:
        try:
            sent = [_send(client, name, file, progress) for file in files]
            body = fields_of(files) | activation_fields(activation) | {"tokenizer_optional": not api.server}
            added = client.ask("POST", f"/api/v1/adapters/{name}/versions", json=body)
        except Refused as refusal:
            if "report" not in refusal.body:
                raise
            tell_refusal(name, msgspec.convert(refusal.body["report"], Report), as_json)
            raise typer.Exit(1) from None
    if not api.server:
        tell_added(added, as_json)
        return
    if not as_json:
        for one in sent:
            console.print(f"  {one.file.name}: {_words(one)}", soft_wrap=True)
    tell_added(added, as_json, files=[_as_json(one) for one in sent])


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


def _words(sent: Sent) -> str:
    size = size_words(sent.file.size)
    if sent.already_here:
        return f"already on the server ({size})"
    return f"{size} sent" if not sent.begun_at else f"{size}, resumed at {size_words(sent.begun_at)}"


def _as_json(sent: Sent) -> dict[str, Any]:
    file = sent.file
    told = {"already_here": sent.already_here, "begun_at": sent.begun_at}
    return {"file": file.name, "size": file.size, "sha256": file.sha256, **told}
