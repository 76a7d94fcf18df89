"""What the words of the command line share: options that many have, and JSON for programs."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

Fields = Mapping[str, Any]
"""What the API answers of one thing."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OwnTenant = Annotated[
    str, typer.Option(help="Whose: by default those of `default`. Not with --server.", metavar="NAME")
]
"""Where the API changes what is the key's tenant's alone."""
Tenant = Annotated[
    str, typer.Option(help="Whose: by default those of `default`, over the API of the key's tenant.", metavar="NAME")
]


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def tell(changed: Fields, words: str, as_json: bool) -> None:
    """That something was done: as the API answers it for programs, in words for people."""
    if as_json:
        print_json(changed)
    else:
        Console(highlight=False).print(f"[green]✓[/] {words}")
