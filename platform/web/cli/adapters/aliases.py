"""`loraplex aliases`: weighted routes over versions, their guard and shadow, with or without a running server, here or
over its API."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.adapters.routes import Guard, guard_of, share_by_of
from loraplex.registry.errors import InvalidName, InvalidRoute
from loraplex.registry.names import DEFAULT, parse_reference

from ...settings.running_server import ACTOR
from ..api_client import Key
from ..output import Json, Tenant, print_json, tell
from ..remote import At, remote_and_tenant
from .alias_places import ApiRequest, Body, changed, listed, number_at, removed

if TYPE_CHECKING:
    from loraplex.registry.adapters.views import Adapter
    from loraplex.registry.registry import Registry

SHARE: Final = re.compile(r"([0-9]{1,9})=([0-9]{1,3})", re.ASCII)

app = typer.Typer(help="Split an alias's callers among versions. A running server follows within a second.")
console = Console(highlight=False)
Name = Annotated[str, typer.Argument(metavar="NAME@ALIAS", help="NAME alone means the alias `default`.")]
Ratio = Annotated[float | None, typer.Option(help="The same, as a multiple of the stable version's.")]
Off = Annotated[bool, typer.Option("--off", help="Remove it.")]


@app.command("list")
def list_all(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only this adapter.")] = "",
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List the aliases."""
    remote, tenant = remote_and_tenant(server, key, tenant)
    routes = listed(remote, name, tenant)
    if as_json:
        print_json(routes)
        return
    table = Table("alias", "stable", "weights", "shadow", "guard", "changed by")
    for route in routes:
        place = f"{route['adapter']}@{route['alias']}"
        table.add_row(place, str(route["version"]), *_cells(route), route["updated_by"])
    console.print(table, markup=False)


@app.command("set", epilog="Example: loraplex aliases set sql@prod 2 --candidate 3=10")
def set_route(
    reference: Name,
    version: Annotated[str, typer.Argument(help="Number or alias of the stable version.")],
    candidate: Annotated[
        list[str] | None, typer.Option(metavar="VERSION=PERCENT", help="Percent for another version; may be repeated.")
    ] = None,
    share_by: Annotated[
        str, typer.Option(metavar="request|caller", help="What to split (default: unchanged; caller for a new alias).")
    ] = "",
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Point NAME@ALIAS at VERSION, and split callers with its candidates."""
    name, alias = _parts(reference)
    remote, tenant = remote_and_tenant(server, key, tenant)
    shares, body = dict(_share(text) for text in candidate or []), Body()
    by = share_by_of(share_by) if share_by else None

    def weights(stable: int) -> dict[int, int]:
        return {stable: 100 - sum(shares.values()), **shares}

    def here(registry: "Registry") -> "Adapter":
        stable = registry.adapters.version(f"{name}@{version}", tenant).number
        return registry.adapters.routes.set(
            name, alias, stable, weights(stable), share_by=by, actor=ACTOR, tenant=tenant
        )

    if remote is not None:
        stable = number_at(remote, name, version)
        body = {"version": stable, "weights": {str(number): weight for number, weight in weights(stable).items()}}
        body |= {"share_by": by} if by else {}
    _tell(changed(remote, name, alias, ("PUT", "", body), here, tenant), as_json)


@app.command()
def promote(
    reference: Name,
    version: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Needed if there are several candidates.")
    ] = None,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Make the candidate the stable version, for all callers."""
    name, alias = _parts(reference)
    remote, tenant = remote_and_tenant(server, key, tenant)
    request = ("POST", "/promote", {"version": version})

    def here(registry: "Registry") -> "Adapter":
        return registry.adapters.routes.promote(name, alias, version, actor=ACTOR, tenant=tenant)

    _tell(changed(remote, name, alias, request, here, tenant), as_json)


@app.command()
def rollback(
    reference: Name,
    version: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="The stable version or the previous one.")
    ] = None,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Send all callers to the stable version. Without candidates, return to the previous stable version."""
    name, alias = _parts(reference)
    remote, tenant = remote_and_tenant(server, key, tenant)
    request = ("POST", "/rollback", {"version": version})

    def here(registry: "Registry") -> "Adapter":
        return registry.adapters.routes.rollback(name, alias, version, actor=ACTOR, tenant=tenant)

    _tell(changed(remote, name, alias, request, here, tenant), as_json)


@app.command(epilog="Example: loraplex aliases shadow sql@prod 4 --percent 5")
def shadow(
    reference: Name,
    version: Annotated[str, typer.Argument(help="Number or alias of the version that gets copies.")] = "",
    percent: Annotated[int, typer.Option(min=1, max=100, help="Percent of requests to copy.")] = 10,
    off: Off = False,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Copy a share of the requests to VERSION. Its responses are measured, then discarded."""
    name, alias = _parts(reference)
    remote, tenant = remote_and_tenant(server, key, tenant)
    if off == bool(version):
        raise InvalidRoute("Name the version that gets copies, or use --off.", "version")
    wanted: Body = {"version": int(version) if version.isdecimal() else version, "percent": percent}
    request: ApiRequest = ("DELETE", "/shadow", None) if off else ("PUT", "/shadow", wanted)

    def here(registry: "Registry") -> "Adapter":
        chosen = None if off else version
        return registry.adapters.routes.set_shadow(name, alias, chosen, percent, actor=ACTOR, tenant=tenant)

    _tell(changed(remote, name, alias, request, here, tenant), as_json)


@app.command(epilog="Example: loraplex aliases guard sql@prod --max-error-rate 0.02 --max-first-token-ratio 1.5")
def guard(
    reference: Name,
    max_error_rate: Annotated[float | None, typer.Option(help="Share of requests that may fail, such as 0.02.")] = None,
    max_first_token_ms: Annotated[float | None, typer.Option(help="p95 time to first token.")] = None,
    max_first_token_ratio: Annotated[
        float | None, typer.Option(help="The same, as a multiple of the stable version's.")
    ] = None,
    max_latency_ms: Annotated[float | None, typer.Option(help="p95 time of a whole request.")] = None,
    max_latency_ratio: Ratio = None,
    min_requests: Annotated[int, typer.Option(help="Requests needed before the guard acts.")] = Guard().min_requests,
    window_seconds: Annotated[
        int, typer.Option(help="Window of requests that count, in seconds.")
    ] = Guard().window_seconds,
    off: Off = False,
    tenant: Tenant = "",
    server: At = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Roll back a candidate automatically when it breaks a limit."""
    name, alias = _parts(reference)
    remote, tenant = remote_and_tenant(server, key, tenant)
    limits = {
        "max_error_rate": max_error_rate,
        "max_first_token_ms": max_first_token_ms,
        "max_first_token_ratio": max_first_token_ratio,
        "max_latency_ms": max_latency_ms,
        "max_latency_ratio": max_latency_ratio,
    }
    given = {name: limit for name, limit in limits.items() if limit is not None}
    chosen = None if off else guard_of({**given, "min_requests": min_requests, "window_seconds": window_seconds})
    request: ApiRequest = ("DELETE", "/guard", None) if off else ("PUT", "/guard", msgspec.to_builtins(chosen))

    def here(registry: "Registry") -> "Adapter":
        return registry.adapters.routes.set_guard(name, alias, chosen, actor=ACTOR, tenant=tenant)

    _tell(changed(remote, name, alias, request, here, tenant), as_json)


@app.command()
def remove(reference: Name, tenant: Tenant = "", server: At = "", key: Key = "", as_json: Json = False) -> None:
    """Remove an alias; its versions stay."""
    name, alias = _parts(reference)
    remote, tenant = remote_and_tenant(server, key, tenant)
    told = removed(remote, name, alias, tenant)
    tell({"removed": f"{name}@{alias}", **told}, f"{name}@{alias} removed. {told['message']}".strip(), as_json)


def _parts(reference: str) -> tuple[str, str]:
    parsed = parse_reference(reference)
    if isinstance(parsed.selector, int):
        raise InvalidName(f"'{reference}' names a version. Name an alias, such as {parsed.name}@prod.")
    return parsed.name, parsed.selector or DEFAULT


def _share(text: str) -> tuple[int, int]:
    found = SHARE.fullmatch(text)
    if found is None:
        raise InvalidRoute(f"Give candidates as VERSION=PERCENT, such as 3=10; got {text[:40]!a}.")
    return int(found[1]), int(found[2])


def _tell(route: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(route)
        return
    place, facts = f"{route['adapter']}@{route['alias']}", ", ".join(_facts(route))
    console.print(f"[green]✓[/] {place} points at version {route['version']}; {facts}", soft_wrap=True)
    if route["message"]:
        console.print(route["message"], markup=False, soft_wrap=True)


def _cells(route: Mapping[str, Any]) -> Sequence[str]:
    weights, shadow, guard = _facts(route)
    return weights, shadow.removeprefix("shadow: "), guard.removeprefix("guard: ")


def _facts(route: Mapping[str, Any]) -> tuple[str, str, str]:
    weights = ", ".join(f"version {version} {weight} %" for version, weight in route["weights"].items())
    weights += f" of {route['share_by']}s" if len(route["weights"]) > 1 else ""
    copies = route["shadow"]
    shadow = "none" if copies is None else f"version {copies['version']}, {copies['percent']} %"
    limits = {name: limit for name, limit in (route["guard"] or {}).items() if name.startswith("max_")}
    guard = ", ".join(f"{name.removeprefix('max_')} {limit:g}" for name, limit in limits.items()) or "none"
    return weights, f"shadow: {shadow}", f"guard: {guard}"
