"""`loraplex credentials`: the first login and the first key, which the server's log does not show."""

from pathlib import Path

import msgspec
import typer

from loraplex.registry.credentials import Credentials, read_credentials, still_valid

from ..opened import opened_database
from ..output import Json, print_json
from ..settings_here import settings_here

app = typer.Typer(help="Show the first login and the first API key.", no_args_is_help=True)


@app.callback()
def credentials() -> None:
    """Keeps `show` a word of its own."""


@app.command()
def show(as_json: Json = False) -> None:
    """Print the first login and the first key, if the data folder has them and they are still valid."""
    settings = settings_here()
    known = _known(settings.data_dir / "credentials.json")
    with opened_database(settings) as registry:
        valid = still_valid(registry, known)
    if as_json:
        print_json(msgspec.to_builtins(valid))
        return
    print(f"Login  {_login(valid)}")
    print(f"Key    {valid.api_key or 'the first key is no longer valid. Create another: loraplex keys create NAME'}")


def _known(file: Path) -> Credentials:
    """ValueError where there is none to look at."""
    try:
        if not file.exists():
            raise ValueError(
                f"no server has started on the data folder {file.parent} yet. The first start creates a login and a "
                "key. Start it with loraplex serve, or name another folder with --data-dir"
            )
        return read_credentials(file)
    except PermissionError:
        raise ValueError(f"{file} belongs to another user. Run this as the server's user") from None


def _login(valid: Credentials) -> str:
    if valid.admin_password is not None:
        return f"{valid.admin_user} / {valid.admin_password}"
    return f"the password of {valid.admin_user} was changed. Set another: loraplex users password {valid.admin_user}"
