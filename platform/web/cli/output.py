"""What the words of the command line share: options that many have, and JSON for programs."""

import json
from typing import Annotated, Final

import typer

ACTOR: Final = "cli"
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Tenant = Annotated[str, typer.Option(help="Whose.", metavar="NAME")]


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
