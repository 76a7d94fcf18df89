"""`loraplex aliases`: weighted routes over versions, their guard and shadow, with or without a running server."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loraplex.registry.adapters.routes import Guard, guard_of, share_by_of
from loraplex.registry.errors import InvalidName, InvalidRoute
from loraplex.registry.names import DEFAULT, parse_reference

from ..admin_api import AdminApi, with_api
from ..output import Json, print_json, tell
from .alias_change import alias_path, changed
from .versions import adapter_path, version_at

SHARE: Final = re.compile(r"([0-9]{1,9})=([0-9]{1,3})", re.ASCII)

app = typer.Typer(help="Split an alias's callers among versions. A running server follows within a second.")
console = Console(highlight=False)
Name = Annotated[str, typer.Argument(metavar="NAME@ALIAS", help="NAME alone means the alias `default`.")]
Ratio = Annotated[float | None, typer.Option(help="The same, as a multiple of the stable version's.")]
Off = Annotated[bool, typer.Option("--off", help="Remove it.")]


@app.command("list")
@with_api
def list_all(
    api: AdminApi,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Only this adapter.")] = "",
    as_json: Json = False,
) -> None:
    """List the aliases."""
    adapters = [api.ask("GET", adapter_path(name))] if name else api.ask("GET", "/adapters")["data"]
    routes = [{"adapter": one["name"], **route} for one in adapters for route in one["routes"].values()]
    if as_json:
        print_json(routes)
        return
    table = Table("alias", "stable", "weights", "shadow", "guard", "changed by")
    for route in routes:
        place = f"{route['adapter']}@{route['alias']}"
        table.add_row(place, str(route["version"]), *_cells(route), route["updated_by"])
    console.print(table, markup=False)


@app.command("set", epilog="Example: loraplex aliases set sql@prod 2 --candidate 3=10")
@with_api
def set_route(
    api: AdminApi,
    reference: Name,
    version: Annotated[str, typer.Argument(help="Number or alias of the stable version.")],
    candidate: Annotated[
        list[str] | None, typer.Option(metavar="VERSION=PERCENT", help="Percent for another version; may be repeated.")
    ] = None,
    share_by: Annotated[
        str, typer.Option(metavar="request|caller", help="What to split (default: unchanged; caller for a new alias).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Point NAME@ALIAS at VERSION, and split callers with its candidates."""
    name, alias = _parts(reference)
    shares = dict(_share(text) for text in candidate or [])
    by = {"share_by": share_by_of(share_by)} if share_by else {}
    stable = _number_at(api, name, version)
    weights = {str(number): weight for number, weight in {stable: 100 - sum(shares.values()), **shares}.items()}
    _tell(changed(api, name, alias, "PUT", "", {"version": stable, "weights": weights, **by}), as_json)


@app.command()
@with_api
def promote(
    api: AdminApi,
    reference: Name,
    version: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Needed if there are several candidates.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the candidate the stable version, for all callers."""
    name, alias = _parts(reference)
    _tell(changed(api, name, alias, "POST", "/promote", {"version": version}), as_json)


@app.command()
@with_api
def rollback(
    api: AdminApi,
    reference: Name,
    version: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="The stable version or the previous one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send all callers to the stable version. Without candidates, return to the previous stable version."""
    name, alias = _parts(reference)
    _tell(changed(api, name, alias, "POST", "/rollback", {"version": version}), as_json)


@app.command(epilog="Example: loraplex aliases shadow sql@prod 4 --percent 5")
@with_api
def shadow(
    api: AdminApi,
    reference: Name,
    version: Annotated[str, typer.Argument(help="Number or alias of the version that gets copies.")] = "",
    percent: Annotated[int, typer.Option(min=1, max=100, help="Percent of requests to copy.")] = 10,
    off: Off = False,
    as_json: Json = False,
) -> None:
    """Copy a share of the requests to VERSION. Its responses are measured, then discarded."""
    name, alias = _parts(reference)
    if off == bool(version):
        raise InvalidRoute("Name the version that gets copies, or use --off.", "version")
    wanted = {"version": int(version) if version.isdecimal() else version, "percent": percent}
    method, body = ("DELETE", None) if off else ("PUT", wanted)
    _tell(changed(api, name, alias, method, "/shadow", body), as_json)


@app.command(epilog="Example: loraplex aliases guard sql@prod --max-error-rate 0.02 --max-first-token-ratio 1.5")
@with_api
def guard(
    api: AdminApi,
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
    as_json: Json = False,
) -> None:
    """Roll back a candidate automatically when it breaks a limit."""
    name, alias = _parts(reference)
    limits = {
        "max_error_rate": max_error_rate,
        "max_first_token_ms": max_first_token_ms,
        "max_first_token_ratio": max_first_token_ratio,
        "max_latency_ms": max_latency_ms,
        "max_latency_ratio": max_latency_ratio,
    }
    given = {name: limit for name, limit in limits.items() if limit is not None}
    chosen = None if off else guard_of({**given, "min_requests": min_requests, "window_seconds": window_seconds})
    method, body = ("DELETE", None) if off else ("PUT", msgspec.to_builtins(chosen))
    _tell(changed(api, name, alias, method, "/guard", body), as_json)


@app.command()
@with_api
def remove(api: AdminApi, reference: Name, as_json: Json = False) -> None:
    """Remove an alias; its versions stay."""
    name, alias = _parts(reference)
    answer = api.ask("DELETE", alias_path(name, alias))
    told = {"moves": answer["moves"], "message": answer["message"]}
    tell({"removed": f"{name}@{alias}", **told}, f"{name}@{alias} removed. {told['message']}".strip(), as_json)


def _parts(reference: str) -> tuple[str, str]:
    parsed = parse_reference(reference)
    if isinstance(parsed.selector, int):
        raise InvalidName(f"'{reference}' names a version. Name an alias, such as {parsed.name}@prod.")
    return parsed.name, parsed.selector or DEFAULT


def _number_at(api: AdminApi, name: str, version: str) -> int:
    """Of a version that may be named by an alias."""
    if version.isdecimal():
        return int(version)
    return int(version_at(api.ask("GET", adapter_path(name)), version)["number"])


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
