"""`loraplex config`: the settings in force."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..settings import Settings


def config(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the configuration in force, from flags, environment, file and defaults, with secrets masked."""
    values = Settings().masked()
    if as_json:
        print(json.dumps(values, indent=2, default=str))
        return
    table = Table("setting", "value", "what it is", box=None, padding=(0, 2, 0, 0))
    for name, value in values.items():
        table.add_row(name, "–" if value is None else str(value), Settings.model_fields[name].description)
    Console(highlight=False).print(table)
