"""`loraplex keys`: create, list, limit and revoke API keys, with or without a running server."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Column, Table

from loraplex.registry.access.quotas import Quota
from loraplex.registry.access.scopes import INFERENCE

from ...units import age_words
from ..admin_api import AdminApi, segment, with_api
from ..expiry import read_expiry
from ..output import Json, print_json, tell
from .limit_options import Concurrency, PerDay, Rpm, Tpm, format_limits

app = typer.Typer(help="Create, list, limit and revoke API keys. A running server follows within a second.")
console = Console(highlight=False)
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="As shown by `loraplex keys list`.")]
PREFIX_LENGTH: Final = 12
"""Whole in the narrowest terminal: the other words take it."""


@app.command(epilog="Example: loraplex keys create notebook --adapter sql --rpm 60 --expires 30d")
@with_api
def create(
    api: AdminApi,
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
    as_json: Json = False,
) -> None:
    """Create a key and print it. It is shown only once."""
    expires_at = None if expires is None else read_expiry(expires, datetime.now(UTC))
    scopes, quota = scope or [INFERENCE], Quota(rpm, tpm, concurrency, tokens_per_day)
    limits, ends = msgspec.to_builtins(quota), expires_at and expires_at.isoformat()
    body = {"name": name, "scopes": scopes, "adapters": adapter, "expires_at": ends, "limits": limits}
    made = api.ask("POST", "/keys", body)
    if as_json:
        print_json(made)
        return
    print(made["token"])
    Console(stderr=True, highlight=False).print(f"[green]✓[/] key {made['prefix']}; it will not be shown again")


@app.command("list")
@with_api
def list_all(api: AdminApi, as_json: Json = False) -> None:
    """List a tenant's keys, newest first."""
    keys = api.ask("GET", "/keys")["data"]
    if as_json:
        print_json(keys)
        return
    table = Table(Column("prefix", min_width=PREFIX_LENGTH), "name", "scopes", "models", "limits", "state", "expires")
    table.add_column("last used")
    for one in keys:
        models = "all" if one["adapters"] is None else ", ".join(one["adapters"])
        used = "never" if one["last_used_at"] is None else age_words(_moment(one["last_used_at"]))
        limits, scopes = format_limits(one["limits"]), ", ".join(one["scopes"])
        table.add_row(one["prefix"], one["name"], scopes, models, limits, _state(one), _expiry(one), used)
    console.print(table, markup=False)


@app.command(epilog="Example: loraplex keys limit 3f9c1a2b4d5e --rpm 60 --tokens-per-day 1000000")
@with_api
def limit(
    api: AdminApi,
    prefix: Prefix,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    tokens_per_day: PerDay = None,
    as_json: Json = False,
) -> None:
    """Replace all limits of a key. Limits that are not given are removed."""
    body = {"limits": msgspec.to_builtins(Quota(rpm, tpm, concurrency, tokens_per_day))}
    changed = api.ask("PATCH", f"/keys/{segment(prefix)}", body)
    tell(changed, f"{changed['prefix']}: {format_limits(changed['limits'])}", as_json)


@app.command()
@with_api
def revoke(api: AdminApi, prefix: Prefix, as_json: Json = False) -> None:
    """Revoke a key for good."""
    api.ask("DELETE", f"/keys/{segment(prefix)}")
    tell({"revoked": prefix}, f"{prefix} revoked", as_json)


def _state(key: Mapping[str, Any]) -> str:
    if key["revoked_at"] is not None:
        return "revoked"
    return "expired" if key["expires_at"] is not None and _moment(key["expires_at"]) <= datetime.now(UTC) else "valid"


def _expiry(key: Mapping[str, Any]) -> str:
    return "never" if key["expires_at"] is None else f"{_moment(key['expires_at']):%Y-%m-%d %H:%M} UTC"


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
