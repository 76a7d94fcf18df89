"""`loraplex users`: who logs in."""

from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.names import DEFAULT_TENANT

from ..admin_api import AdminApi, segment, with_api
from ..output import Json, print_json, tell

app = typer.Typer(help="Create, list and remove users, and set their roles and passwords.")
console = Console(highlight=False)
Password = Annotated[
    str, typer.Option(prompt=True, hide_input=True, confirmation_prompt=True, help="Prompted for if missing.")
]
ROLES = "viewer, editor or admin."


@app.command(epilog="Example: loraplex users create bob --role editor")
@with_api
def create(
    api: AdminApi,
    name: str,
    role: Annotated[str, typer.Option(help=ROLES)],
    password: Password,
    as_json: Json = False,
) -> None:
    """Create a user. Prompts for the password."""
    tenant = api.whose()
    made = api.ask("POST", "/users", {"name": name, "password": password, "role": role})
    login = name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"
    tell(made, f"{name} logs in as {login}", as_json)


@app.command("list")
@with_api
def list_all(api: AdminApi, as_json: Json = False) -> None:
    """List a tenant's users."""
    found = api.ask("GET", "/users")["data"]
    if as_json:
        print_json(found)
        return
    table = Table("name", "role", "since", "password of")
    for user in found:
        table.add_row(user["name"], user["role"], _day(user["created_at"]), _day(user["password_changed_at"]))
    console.print(table, markup=False)


@app.command(epilog="Example: loraplex users role bob admin")
@with_api
def role(
    api: AdminApi,
    name: str,
    role: Annotated[str, typer.Argument(help=ROLES)],
    as_json: Json = False,
) -> None:
    """Change a user's role, from the next request on."""
    changed = api.ask("PATCH", f"/users/{segment(name)}", {"role": role})
    tell(changed, f"{name} is {changed['role']}", as_json)


@app.command()
@with_api
def password(
    api: AdminApi,
    name: str,
    password: Password,
    as_json: Json = False,
) -> None:
    """Set a user's password. This ends all of the user's sessions."""
    changed = api.ask("PATCH", f"/users/{segment(name)}", {"password": password})
    tell(changed, f"{name} has a new password", as_json)


@app.command()
@with_api
def remove(api: AdminApi, name: str, as_json: Json = False) -> None:
    """Remove a user and end all of the user's sessions."""
    api.ask("DELETE", f"/users/{segment(name)}")
    tell({"removed": name}, f"{name} removed", as_json)


def _day(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d}"
