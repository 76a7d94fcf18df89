"""`loraplex keys`: create, list, limit and revoke API keys, with or without a running server."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.keys import INFERENCE, ApiKey
from loraplex.registry.quotas import Quota
from loraplex.registry.tables import DEFAULT_TENANT

from ..api.keys import key_json
from ..settings import Settings
from ..units import age_words
from .expiry import read_expiry
from .opened import opened_database
from .output import ACTOR, Json, Tenant, print_json

app = typer.Typer(help="Create, list, limit and revoke API keys. A running server follows within a second.")
console = Console(highlight=False)
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="As `loraplex keys list` shows it.")]
Rpm = Annotated[int | None, typer.Option("--rpm", help="Requests per minute.")]
Tpm = Annotated[int | None, typer.Option("--tpm", help="Tokens of prompts and output per minute.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", help="Requests in flight.")]
PerDay = Annotated[int | None, typer.Option("--tokens-per-day", help="Tokens in a day of UTC.")]


@app.command(epilog="Example: loraplex keys create notebook --adapter sql --rpm 60 --expires 30d")
def create(
    name: str,
    scope: Annotated[list[str] | None, typer.Option(help="inference, adapters or admin; may be repeated.")] = None,
    adapter: Annotated[list[str] | None, typer.Option(help="Only for this model; may be repeated.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="After a duration (12h, 30d, 8w, 1y) or on a day (2027-01-31).")
    ] = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    tokens_per_day: PerDay = None,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> None:
    """Make a key and print it: it is shown once."""
    expires_at = None if expires is None else read_expiry(expires, datetime.now(UTC))
    with opened_database(Settings()) as registry:
        created = registry.keys.create(
            name,
            scope or [INFERENCE],
            actor=ACTOR,
            tenant=tenant,
            expires_at=expires_at,
            adapters=adapter,
            quota=Quota(rpm, tpm, concurrency, tokens_per_day),
        )
    if as_json:
        print_json({"token": created.token, **key_json(created.key)})
        return
    print(created.token)
    Console(stderr=True, highlight=False).print(f"[green]✓[/] key {created.key.prefix}; it is not shown again")


@app.command("list")
def list_all(tenant: Tenant = DEFAULT_TENANT, as_json: Json = False) -> None:
    """List a tenant's keys, newest first."""
    with opened_database(Settings()) as registry:
        registry.tenants.get(tenant)
        keys = registry.keys.list(tenant)
    if as_json:
        print_json([key_json(key) for key in keys])
        return
    table = Table("prefix", "name", "scopes", "models", "limits", "state", "expires", "last used")
    for key in keys:
        models = "all" if key.adapters is None else ", ".join(sorted(key.adapters))
        used = "never" if key.last_used_at is None else age_words(key.last_used_at)
        scopes = ", ".join(sorted(key.scopes))
        table.add_row(key.prefix, key.name, scopes, models, _limits(key.quota), _state(key), _expiry(key), used)
    console.print(table)


@app.command(epilog="Example: loraplex keys limit 3f9c1a2b4d5e --rpm 60 --tokens-per-day 1000000")
def limit(
    prefix: Prefix,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    tokens_per_day: PerDay = None,
    tenant: Tenant = DEFAULT_TENANT,
) -> None:
    """Give a key these limits instead of its old ones; those that are not named are none."""
    with opened_database(Settings()) as registry:
        quota = Quota(rpm, tpm, concurrency, tokens_per_day)
        key = registry.keys.change(prefix, actor=ACTOR, tenant=tenant, quota=quota)
    console.print(f"[green]✓[/] {key.prefix}: {_limits(key.quota)}")


@app.command()
def revoke(prefix: Prefix, tenant: Tenant = DEFAULT_TENANT) -> None:
    """End a key for good."""
    with opened_database(Settings()) as registry:
        registry.keys.revoke(prefix, actor=ACTOR, tenant=tenant)
    console.print(f"[green]✓[/] {prefix} revoked")


def _limits(quota: Quota) -> str:
    named = (
        (quota.requests_per_minute, "rpm"),
        (quota.tokens_per_minute, "tpm"),
        (quota.max_concurrent, "at once"),
        (quota.tokens_per_day, "tokens a day"),
    )
    return ", ".join(f"{limit:,} {words}" for limit, words in named if limit is not None) or "none"


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else "valid"


def _expiry(key: ApiKey) -> str:
    return "never" if key.expires_at is None else f"{key.expires_at:%Y-%m-%d %H:%M} UTC"
