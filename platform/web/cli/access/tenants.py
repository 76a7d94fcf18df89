"""`loraplex tenants`: who shares the server, here or over its API with a key of the operator's."""

from datetime import datetime

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.access.quotas import Quota

from ...api.answers import tenant_json
from ...settings.running_server import ACTOR
from ...settings.settings import Settings
from ..api_client import Key
from ..opened import opened_database
from ..output import Json, print_json, tell
from ..remote import At, remote_of, segment
from .limit_options import Concurrency, PerDay, Rpm, Tpm, limits_in_words

app = typer.Typer(help="Create, list, limit and disable tenants. A running server follows within a second.")
console = Console(highlight=False)


@app.command(epilog="Example: loraplex tenants create acme")
def create(name: str, server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Create a tenant."""
    remote = remote_of(server, key)
    if remote is not None:
        made = remote.ask("POST", "/tenants", {"name": name})
    else:
        with opened_database(Settings()) as registry:
            made = tenant_json(registry.tenants.create(name, actor=ACTOR))
    words = f"{name}; create its first login with: loraplex users create NAME --role admin --tenant {name}"
    tell(made, words, as_json)


@app.command("list")
def list_all(server: At = "", key: Key = "", as_json: Json = False) -> None:
    """List the tenants."""
    remote = remote_of(server, key)
    if remote is not None:
        found = remote.ask("GET", "/tenants")["data"]
    else:
        with opened_database(Settings()) as registry:
            found = [tenant_json(tenant) for tenant in registry.tenants.list()]
    if as_json:
        print_json(found)
        return
    table = Table("name", "since", "state", "limits")
    for tenant in found:
        since = f"{datetime.fromisoformat(tenant['created_at']):%Y-%m-%d}"
        state = "disabled" if tenant["disabled_at"] else "enabled"
        table.add_row(tenant["name"], since, state, limits_in_words(tenant["limits"]))
    console.print(table, markup=False)


@app.command(epilog="Example: loraplex tenants limit acme --rpm 600 --tokens-per-day 5000000")
def limit(
    name: str,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    tokens_per_day: PerDay = None,
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Replace all limits of a tenant, which its keys and users share. Limits that are not given are removed."""
    quota, remote = Quota(rpm, tpm, concurrency, tokens_per_day), remote_of(server, key)
    if remote is not None:
        changed = remote.ask("PATCH", f"/tenants/{segment(name)}", {"limits": msgspec.to_builtins(quota)})
    else:
        with opened_database(Settings()) as registry:
            changed = tenant_json(registry.tenants.set_quota(name, quota, actor=ACTOR))
    tell(changed, f"{name}: {limits_in_words(changed['limits'])}", as_json)


@app.command()
def disable(name: str, server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Disable a tenant: refuse its keys and logins, and serve none of its adapters. Nothing is deleted."""
    _set_disabled(name, True, server, key, as_json)


@app.command()
def enable(name: str, server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Enable a tenant again."""
    _set_disabled(name, False, server, key, as_json)


def _set_disabled(name: str, disabled: bool, server: str, key: str, as_json: bool) -> None:
    remote = remote_of(server, key)
    if remote is not None:
        changed = remote.ask("PATCH", f"/tenants/{segment(name)}", {"disabled": disabled})
    else:
        with opened_database(Settings()) as registry:
            changed = tenant_json(registry.tenants.set_disabled(name, disabled, actor=ACTOR))
    tell(changed, f"{name} {'disabled' if disabled else 'enabled'}", as_json)
