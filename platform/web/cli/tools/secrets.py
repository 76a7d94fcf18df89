"""`loraplex secrets`: what another program will take from a file, judged as the server judges its own."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from loraplex.registry.access.passwords import check_password

from ...settings.secrets import refuse_weak, secret_text
from ..output import Json, tell

app = typer.Typer(help="Secrets in files.", no_args_is_help=True)


@app.callback()
def secrets() -> None:
    """Keeps `check` a word of its own."""


@app.command(epilog="Example: loraplex secrets check deploy/secrets/grafana_password")
def check(
    files: Annotated[list[Path], typer.Argument(help="Files with one password each.", metavar="FILE...")],
    as_json: Json = False,
) -> None:
    """Refuse files whose secret is missing, empty, short or easily guessed. Prints no secret, and does not check file
    permissions."""
    for file in files:
        refuse_weak(str(file), SecretStr(secret_text(file)), check_password, made_for_you=False)
    names = [str(file) for file in files]
    tell({"checked": names}, f"not easily guessed: {', '.join(names)}", as_json)
