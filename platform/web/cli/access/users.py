"""`loraplex users`: who logs in, here or over a server's API."""

from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.names import DEFAULT_TENANT

from ...api.answers import user_json
from ...settings.running_server import ACTOR
from ...settings.settings import Settings
from ..api_client import Key
from ..opened import opened_database
from ..output import Json, Tenant, print_json, tell
from ..remote import At, remote_and_tenant, segment

app = typer.Typer(help="Create, list and remove users, and set their roles and passwords.")
console = Console(highlight=False)
Password = Annotated[
    str, typer.Option(prompt=True, hide_input=True, confirmation_prompt=True, help="Prompted for if missing.")
]
ROLES = "viewer, editor or admin."


@app.command(epilog="Example: loraplex users create bob --role editor")
def create(
    name: str,
    role: Annotated[str, typer.Option(help=ROLES)],
    password: Password,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Create a user. Prompts for the password."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        tenant = remote.whose()
        made = remote.ask("POST", "/users", {"name": name, "password": password, "role": role})
    else:
        with opened_database(Settings()) as registry:
            made = user_json(registry.users.create(name, password, role, actor=ACTOR, tenant=tenant))
    login = name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"
    tell(made, f"{name} logs in as {login}", as_json)


@app.command("list")
def list_all(tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False) -> None:
    """List a tenant's users."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        found = remote.ask("GET", "/users")["data"]
    else:
        with opened_database(Settings()) as registry:
            registry.tenants.get(tenant)
            found = [user_json(user) for user in registry.users.list(tenant)]
    if as_json:
        print_json(found)
        return
    table = Table("name", "role", "since", "password of")
    for user in found:
        table.add_row(user["name"], user["role"], _day(user["created_at"]), _day(user["password_changed_at"]))
    console.print(table, markup=False)


@app.command(epilog="Example: loraplex users role bob admin")
def role(
    name: str,
    role: Annotated[str, typer.Argument(help=ROLES)],
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Change a user's role, from the next request on."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        changed = remote.ask("PATCH", f"/users/{segment(name)}", {"role": role})
    else:
        with opened_database(Settings()) as registry:
            changed = user_json(registry.users.set_role(name, role, actor=ACTOR, tenant=tenant))
    tell(changed, f"{name} is {changed['role']}", as_json)


@app.command()
def password(
    name: str,
    password: Password,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Set a user's password. This ends all of the user's sessions."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        changed = remote.ask("PATCH", f"/users/{segment(name)}", {"password": password})
    else:
        with opened_database(Settings()) as registry:
            by = {"actor": ACTOR, "tenant": tenant}
            changed = user_json(registry.users.set_password(name, password, role=None, **by))
    tell(changed, f"{name} has a new password", as_json)


@app.command()
def remove(name: str, tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Remove a user and end all of the user's sessions."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        remote.ask("DELETE", f"/users/{segment(name)}")
    else:
        with opened_database(Settings()) as registry:
            registry.users.remove(name, actor=ACTOR, tenant=tenant)
    tell({"removed": name}, f"{name} removed", as_json)


def _day(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d}"
