"""`loraplex db`: the database's schema."""

import typer

from loraplex.registry.migrate import head, upgrade

from ..data_folder import prepare_data_folder
from ..setting_secrets import mask_url
from ..settings import Settings

app = typer.Typer(help="The database.", no_args_is_help=True)


@app.callback()
def database() -> None:
    """Keeps `upgrade` a word of its own."""


@app.command("upgrade")
def upgrade_command() -> None:
    """Migrate the database to the newest schema. `serve` does this by itself."""
    settings = Settings()
    prepare_data_folder(settings.data_dir)
    upgrade(settings.database)
    print(f"{mask_url(settings.database)} is at {head()}")
