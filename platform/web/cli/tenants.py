"""`loraplex tenants` and `loraplex users`: who shares the server, and who logs in to it."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.tables import DEFAULT_TENANT

from ..api.tenants import tenant_json
from ..api.users import user_json
from ..settings import Settings
from .opened import opened_database
from .output import ACTOR, Json, Tenant, print_json

tenants = typer.Typer(help="Make, list and disable tenants. A running server follows within a second.")
users = typer.Typer(help="Make, list and remove users, and set their passwords.")
console = Console(highlight=False)


@tenants.command("create", epilog="Example: loraplex tenants create acme")
def create_tenant(name: str) -> None:
    """Make a tenant."""
    with opened_database(Settings()) as registry:
        registry.tenants.create(name, actor=ACTOR)
    console.print(f"[green]✓[/] {name}; its first login: loraplex users create NAME --role admin --tenant {name}")


@tenants.command("list")
def list_tenants(as_json: Json = False) -> None:
    """List the tenants."""
    with opened_database(Settings()) as registry:
        found = registry.tenants.list()
    if as_json:
        print_json([tenant_json(tenant) for tenant in found])
        return
    table = Table("name", "since", "state")
    for tenant in found:
        table.add_row(tenant.name, f"{tenant.created_at:%Y-%m-%d}", "disabled" if tenant.disabled_at else "enabled")
    console.print(table)


@tenants.command("disable")
def disable_tenant(name: str) -> None:
    """Refuse its keys and logins and serve none of its adapters; nothing is deleted."""
    _set_disabled(name, True)


@tenants.command("enable")
def enable_tenant(name: str) -> None:
    """Let it in again."""
    _set_disabled(name, False)


@users.command("create", epilog="Example: loraplex users create bob --role editor")
def create_user(
    name: str,
    role: Annotated[str, typer.Option(help="viewer, editor or admin.")],
    password: Annotated[str, typer.Option(prompt=True, hide_input=True, confirmation_prompt=True, help="Asked for.")],
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Make a user; the password is asked for."""
    with opened_database(Settings()) as registry:
        registry.users.create(name, password, role, actor=ACTOR, tenant=tenant)
    login = name if tenant == DEFAULT_TENANT else f"{tenant}/{name}"
    console.print(f"[green]✓[/] {name} logs in as {login}")


@users.command("list")
def list_users(tenant: Tenant = DEFAULT_TENANT, as_json: Json = False) -> None:
    """List a tenant's users."""
    with opened_database(Settings()) as registry:
        registry.tenants.get(tenant)
        found = registry.users.list(tenant)
    if as_json:
        print_json([user_json(user) for user in found])
        return
    table = Table("name", "role", "since", "password of")
    for user in found:
        table.add_row(user.name, user.role, f"{user.created_at:%Y-%m-%d}", f"{user.password_changed_at:%Y-%m-%d}")
    console.print(table)


@users.command("password")
def set_password(
    name: str,
    password: Annotated[str, typer.Option(prompt=True, hide_input=True, confirmation_prompt=True, help="Asked for.")],
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Set a user's password, which ends all sessions."""
    with opened_database(Settings()) as registry:
        registry.users.require(name, tenant)
        registry.users.set_password(name, password, actor=ACTOR, tenant=tenant)
    console.print(f"[green]✓[/] {name} has a new password")


@users.command("remove")
def remove_user(name: str, tenant: Tenant = DEFAULT_TENANT) -> None:
    """Remove a user with all sessions."""
    with opened_database(Settings()) as registry:
        registry.users.remove(name, actor=ACTOR, tenant=tenant)
    console.print(f"[green]✓[/] {name} removed")


def _set_disabled(name: str, disabled: bool) -> None:
    with opened_database(Settings()) as registry:
        registry.tenants.set_disabled(name, disabled, actor=ACTOR)
    console.print(f"[green]✓[/] {name} {'disabled' if disabled else 'enabled'}")
