"""`loraplex db`: the database's schema."""

from enum import StrEnum
from typing import Annotated

import typer

from loraplex.registry.database.database import parse_url
from loraplex.registry.database.migrate import head, upgrade

from ...settings.data_folder import prepare_data_folder
from ...settings.secrets import mask_url
from ..output import Json, print_json
from ..settings_here import settings_here


class Kind(StrEnum):
    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


app = typer.Typer(help="The database.", no_args_is_help=True)


@app.callback()
def database() -> None:
    """Keeps `upgrade` a word of its own."""


@app.command("upgrade")
def upgrade_command(
    only: Annotated[Kind | None, typer.Option(help="Refuse to migrate any other kind of database.")] = None,
    as_json: Json = False,
) -> None:
    """Migrate the database to the newest schema. `serve` does this automatically."""
    settings = settings_here()
    kind = parse_url(settings.database).get_backend_name()
    if only is not None and kind != only:
        raise ValueError(f"the settings name a {kind} database, not {only.value}. Check LORAPLEX_DATABASE_URL")
    prepare_data_folder(settings.data_dir)
    upgrade(settings.database)
    place, version = mask_url(settings.database), head()
    if as_json:
        print_json({"database": place, "version": version})
    else:
        print(f"{place} is at {version}")
