"""What the words of the command line share: options that many have, and JSON for programs."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

Fields = Mapping[str, Any]
"""What the API answers of one thing."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WIDEST: Final = 100_000


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def print_table(table: Table, wide: bool = False) -> None:
    """A line for each row: names in the first column that the terminal has no room for end in …, unless `wide`."""
    name, *others = table.columns
    name.overflow = "ellipsis"
    for column in others:
        column.no_wrap = True
    width = Console(width=WIDEST).measure(table).maximum if wide else None
    Console(highlight=False, width=width).print(table, markup=False)


def tell(changed: Fields, words: str, as_json: bool) -> None:
    """That something was done: as the API answers it for programs, in words for people."""
    if as_json:
        print_json(changed)
    else:
        Console(highlight=False).print(f"[green]✓[/] {words}")
