"""`loraplex keys`: create, list, limit and revoke API keys, with or without a running server, here or over its API."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table

from loraplex.registry.access.quotas import Quota
from loraplex.registry.access.scopes import INFERENCE

from ...api.answers import key_json
from ...settings.running_server import ACTOR
from ...settings.settings import Settings
from ...units import age_words
from ..api_client import Key
from ..expiry import read_expiry
from ..opened import opened_database
from ..output import Json, Tenant, print_json, tell
from ..remote import At, remote_and_tenant, segment
from .limit_options import Concurrency, PerDay, Rpm, Tpm, limits_in_words

app = typer.Typer(help="Create, list, limit and revoke API keys. A running server follows within a second.")
console = Console(highlight=False)
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="As shown by `loraplex keys list`.")]
PREFIX_LENGTH: Final = 12
"""Whole in the narrowest terminal: the other words take it."""


@app.command(epilog="Example: loraplex keys create notebook --adapter sql --rpm 60 --expires 30d")
def create(
    name: str,
    scope: Annotated[list[str] | None, typer.Option(help="inference, adapters or admin; may be repeated.")] = None,
    adapter: Annotated[list[str] | None, typer.Option(help="Only for this model; may be repeated.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="A duration (12h, 30d, 8w, 1y) or a date (2027-01-31).")
    ] = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    tokens_per_day: PerDay = None,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Create a key and print it. It is shown only once."""
    expires_at = None if expires is None else read_expiry(expires, datetime.now(UTC))
    scopes, quota = scope or [INFERENCE], Quota(rpm, tpm, concurrency, tokens_per_day)
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        limits, ends = msgspec.to_builtins(quota), expires_at and expires_at.isoformat()
        body = {"name": name, "scopes": scopes, "adapters": adapter, "expires_at": ends, "limits": limits}
        made = remote.ask("POST", "/keys", body)
    else:
        with opened_database(Settings()) as registry:
            created = registry.keys.create(
                name, scopes, actor=ACTOR, tenant=tenant, expires_at=expires_at, adapters=adapter, quota=quota
            )
        made = {"token": created.token, **key_json(created.key)}
    if as_json:
        print_json(made)
        return
    print(made["token"])
    Console(stderr=True, highlight=False).print(f"[green]✓[/] key {made['prefix']}; it will not be shown again")


@app.command("list")
def list_all(tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False) -> None:
    """List a tenant's keys, newest first."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        keys = remote.ask("GET", "/keys")["data"]
    else:
        with opened_database(Settings()) as registry:
            registry.tenants.get(tenant)
            keys = [key_json(one) for one in registry.keys.list(tenant)]
    if as_json:
        print_json(keys)
        return
    table = Table(Column("prefix", min_width=PREFIX_LENGTH), "name", "scopes", "models", "limits", "state", "expires")
    table.add_column("last used")
    for one in keys:
        models = "all" if one["adapters"] is None else ", ".join(one["adapters"])
        used = "never" if one["last_used_at"] is None else age_words(_moment(one["last_used_at"]))
        limits, scopes = limits_in_words(one["limits"]), ", ".join(one["scopes"])
        table.add_row(one["prefix"], one["name"], scopes, models, limits, _state(one), _expiry(one), used)
    console.print(table, markup=False)


@app.command(epilog="Example: loraplex keys limit 3f9c1a2b4d5e --rpm 60 --tokens-per-day 1000000")
def limit(
    prefix: Prefix,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    tokens_per_day: PerDay = None,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Replace all limits of a key. Limits that are not given are removed."""
    quota = Quota(rpm, tpm, concurrency, tokens_per_day)
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        body = {"limits": msgspec.to_builtins(quota)}
        changed = remote.ask("PATCH", f"/keys/{segment(prefix)}", body)
    else:
        with opened_database(Settings()) as registry:
            changed = key_json(registry.keys.change(prefix, actor=ACTOR, tenant=tenant, quota=quota))
    tell(changed, f"{changed['prefix']}: {limits_in_words(changed['limits'])}", as_json)


@app.command()
def revoke(prefix: Prefix, tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Revoke a key for good."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    if remote is not None:
        remote.ask("DELETE", f"/keys/{segment(prefix)}")
    else:
        with opened_database(Settings()) as registry:
            registry.keys.revoke(prefix, actor=ACTOR, tenant=tenant)
    tell({"revoked": prefix}, f"{prefix} revoked", as_json)


def _state(key: Mapping[str, Any]) -> str:
    if key["revoked_at"] is not None:
        return "revoked"
    return "expired" if key["expires_at"] is not None and _moment(key["expires_at"]) <= datetime.now(UTC) else "valid"


def _expiry(key: Mapping[str, Any]) -> str:
    return "never" if key["expires_at"] is None else f"{_moment(key['expires_at']):%Y-%m-%d %H:%M} UTC"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
