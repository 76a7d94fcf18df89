"""`loraplex adapters profile`: how a version is asked where requests leave it open."""

from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from loraplex.registry.names import parse_reference

from ...http.errors import ApiError
from ...http.json_body import parse_object
from ..admin_api import AdminApi, with_api
from ..api_client import Refused
from ..output import Fields, Json, print_json
from .versions import adapter_path

Reference = Annotated[str, typer.Argument(metavar="NAME[@VERSION]")]
File = Annotated[
    Path | None, typer.Option("--file", help="Set the profile to this JSON object.", metavar="PROFILE.json")
]
Show = Annotated[bool, typer.Option("--show", help="Print the profile (the default).")]
Clear = Annotated[bool, typer.Option("--clear", help="Remove the profile.")]
console = Console(highlight=False, markup=False)


@with_api
def profile(
    api: AdminApi,
    reference: Reference,
    file: File = None,
    show: Show = False,
    clear: Clear = False,
    as_json: Json = False,
) -> None:
    """Show, set or remove the serving profile of a version (default: the current one)."""
    if (file is not None) + show + clear > 1:
        raise ValueError("--file, --show and --clear cannot be combined. Use one of them.")
    path = f"{adapter_path(reference)}/profile"
    if clear:
        api.ask("DELETE", path)
    answer = api.ask("GET", path) if file is None else _set(api, path, file)
    number, given = answer["version"], answer["profile"] or {}
    if as_json:
        print_json(given)
        return
    pinned = f"{parse_reference(reference).name}@{number}"
    console.print(f"{pinned} {'has a serving profile' if given else 'has no serving profile'}")
    for name, value in given.items():
        console.print(f"{name:18} {_shown(value)}", soft_wrap=True)


def _set(api: AdminApi, path: str, file: Path) -> Fields:
    """ValueError names the file where it is no profile."""
    try:
        return api.ask("PUT", path, _object_in(file))
    except Refused as refusal:
        if refusal.status != HTTPStatus.BAD_REQUEST:
            raise
        raise ValueError(f"{file.name}: {refusal}") from None


def _object_in(file: Path) -> dict[str, Any]:
    try:
        return parse_object(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}.") from None
    except ApiError as error:
        raise ValueError(f"{file.name}: {error.message}") from None


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
