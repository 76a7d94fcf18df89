"""`loraplex tenants`: who shares the server, for its operator."""

from datetime import datetime

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.access.quotas import Quota

from ..admin_api import AdminApi, segment, with_operators_api
from ..output import Json, print_json, tell
from .limit_options import Concurrency, PerDay, Rpm, Tpm, format_limits

app = typer.Typer(help="Create, list, limit and disable tenants. A running server follows within a second.")
console = Console(highlight=False)


@app.command(epilog="Example: loraplex tenants create acme")
@with_operators_api
def create(api: AdminApi, name: str, as_json: Json = False) -> None:
    """Create a tenant."""
    made = api.ask("POST", "/tenants", {"name": name})
    words = f"{name}; create its first login with: loraplex users create NAME --role admin --tenant {name}"
    tell(made, words, as_json)


@app.command("list")
@with_operators_api
def list_all(api: AdminApi, as_json: Json = False) -> None:
    """List the tenants."""
    found = api.ask("GET", "/tenants")["data"]
    if as_json:
        print_json(found)
        return
    table = Table("name", "since", "state", "limits")
    for tenant in found:
        since = f"{datetime.fromisoformat(tenant['created_at']):%Y-%m-%d}"
        state = "disabled" if tenant["disabled_at"] else "enabled"
        table.add_row(tenant["name"], since, state, format_limits(tenant["limits"]))
    console.print(table, markup=False)


@app.command(epilog="Example: loraplex tenants limit acme --rpm 600 --tokens-per-day 5000000")
@with_operators_api
def limit(
    api: AdminApi,
    name: str,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    tokens_per_day: PerDay = None,
    as_json: Json = False,
) -> None:
    """Replace all limits of a tenant, which its keys and users share. Limits that are not given are removed."""
    body = {"limits": msgspec.to_builtins(Quota(rpm, tpm, concurrency, tokens_per_day))}
    changed = api.ask("PATCH", f"/tenants/{segment(name)}", body)
    tell(changed, f"{name}: {format_limits(changed['limits'])}", as_json)


@app.command()
@with_operators_api
def disable(api: AdminApi, name: str, as_json: Json = False) -> None:
    """Disable a tenant: refuse its keys and logins, and serve none of its adapters. Nothing is deleted."""
    _set_disabled(name, True, api, as_json)


@app.command()
@with_operators_api
def enable(api: AdminApi, name: str, as_json: Json = False) -> None:
    """Enable a tenant again."""
    _set_disabled(name, False, api, as_json)


def _set_disabled(name: str, disabled: bool, api: AdminApi, as_json: bool) -> None:
    changed = api.ask("PATCH", f"/tenants/{segment(name)}", {"disabled": disabled})
    tell(changed, f"{name} {'disabled' if disabled else 'enabled'}", as_json)
