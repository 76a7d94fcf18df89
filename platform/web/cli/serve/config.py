"""`loraplex config`: the settings in force."""

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ...settings.in_force import SettingInForce, obstacle_to_restart, settings_in_force, value_words, words_of
from ...settings.settings import Settings
from ..admin_api import api_of
from ..output import Json, print_json
from ..server_here import answering_server


def config(
    wide: Annotated[bool, typer.Option("--wide", help="Also describe each setting.")] = False, as_json: Json = False
) -> None:
    """Print the settings in force and the source of each, of the running server or else of the next start."""
    rows, obstacle = _rows()
    if as_json:
        print_json({row.name: msgspec.to_builtins(row) for row in rows})
        return
    table = Table("setting", "value", "from", *(["description"] if wide else []), box=None, padding=(0, 2, 0, 0))
    for row in rows:
        what = [Settings.model_fields[row.name].description] if wide else []
        table.add_row(row.name, _value(row), row.source, *what)
    console = Console(highlight=False)
    console.print(table, markup=False)
    if obstacle:
        console.print(f"A restart would fail: {obstacle}", style="red", markup=False, soft_wrap=True)


def _rows() -> tuple[list[SettingInForce], str]:
    running = answering_server()
    if running is None:
        settings = Settings()
        return settings_in_force(settings, None), obstacle_to_restart(settings)
    answer = api_of(running).ask("GET", "/settings")
    return msgspec.convert(answer["data"], list[SettingInForce]), answer["obstacle"]


def _value(row: SettingInForce) -> str:
    words = words_of(row)
    return f"{words} (after a restart: {value_words(row.name, row.next)})" if row.needs_restart else words
