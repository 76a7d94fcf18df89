"""Rows of aliases: found, judged and changed within whoever's transaction; what they may become is for
`alias_routes.py`."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy.orm import Session

from ..database import tables
from ..database.tables import utc_now
from ..errors import InvalidRoute, RouteChanged, UnknownAlias, VersionInUse
from ..names import DEFAULT, Reference
from .routes import etag_of
from .rows import adapter_row

NEW: Final = ""
"""Revision of a route that is not there yet."""


def drop_versions(adapter: tables.Adapter, versions: Sequence[tables.AdapterVersion], whole: bool) -> None:
    """The versions are removed: aliases whose stable version is among them go, from the others they are taken out.

    Raises VersionInUse where the name would come to mean another version by that, unless all of it goes (`whole`).
    """
    for row in list(adapter.aliases):
        if row.version in versions:
            if row.name == DEFAULT and not whole:
                raise VersionInUse(
                    f"The alias '{DEFAULT}' points '{adapter.name}' at version {row.version.number}. Before you remove "
                    "the version, point the alias at another version or remove it."
                )
            adapter.aliases.remove(row)
        row.candidates[:] = [one for one in row.candidates if one.version not in versions]
        row.previous = None if row.previous in versions else row.previous


def check_unrouted(adapter: tables.Adapter, version: tables.AdapterVersion) -> None:
    """Raise VersionInUse where an alias would lead its callers to a version that is served no more."""
    names = ", ".join(str(Reference(adapter.name, row.name)) for row in adapter.aliases if row.version is version)
    if names:
        raise VersionInUse(
            f"Version {version.number} of '{adapter.name}' serves the callers of {names}. Before you disable it, point "
            f"the alias at another version, roll it back or remove it. Or disable all of '{adapter.name}'."
        )


def alias_row(session: Session, name: str, alias: str, tenant: str, seen: str | None = None) -> tables.Alias:
    adapter = adapter_row(session, name, tenant)
    found = next((row for row in adapter.aliases if row.name == alias), None)
    if found is None:
        names = ", ".join(row.name for row in adapter.aliases) or "none"
        raise UnknownAlias(f"Adapter '{name}' has no alias {alias[:80]!a}. It has: {names}.")
    check_seen(f"{name}@{alias}", found, seen)
    return found


def check_seen(label: str, row: tables.Alias | None, seen: str | None) -> None:
    now = NEW if row is None else etag_of(row.updated_at)
    if seen in (None, now):
        return
    if row is None:
        raise RouteChanged(
            f"'{label}' was removed in the meantime, so nothing was done. Reload to see the current aliases."
        )
    if seen == NEW:
        raise RouteChanged(f"'{label}' already exists and points at version {row.version.number}. Change it instead.")
    raise RouteChanged(
        f"'{row.updated_by}' has changed '{label}' since you loaded it, so nothing was done. Reload to see the current "
        "route."
    )


def is_shared(row: tables.Alias) -> bool:
    """Whether there are callers to take back, or a deed of the guard that nobody has looked at."""
    return row.trip is not None or any(candidate.weight for candidate in row.candidates)


def back_to_version(label: str, row: tables.Alias, selector: int | str | None) -> tables.AdapterVersion:
    """The stable version of the route after a rollback."""
    if selector is not None:
        known = [version for version in (row.version, row.previous) if version is not None]
        found = next((version for version in known if str(version.number) == str(selector)), None)
        if found is None:
            numbers = " or ".join(str(version.number) for version in known)
            raise InvalidRoute(
                f"'{label}' can be rolled back to version {numbers} only. To use another version, set the weights.",
                "version",
            )
        return found
    if is_shared(row) or row.rolled_back:
        return row.version
    if row.previous is None:
        raise InvalidRoute(
            f"'{label}' has no candidate and no previous version, so there is nothing to roll back.", "alias"
        )
    return row.previous


def candidate_version(row: tables.Alias, selector: int | str | None) -> tables.AdapterVersion:
    routed = [one.version for one in row.candidates if one.weight]
    known = routed if selector is None else [version for version in routed if str(version.number) == str(selector)]
    if len(known) == 1:
        return known[0]
    numbers = ", ".join(str(version.number) for version in routed) or "none"
    asked = "say which one" if len(routed) > 1 and selector is None else "give one a share first"
    raise InvalidRoute(f"Only candidates can be promoted. Candidates: {numbers}. To promote, {asked}.", "version")


def get_or_add(row: tables.Alias, version: tables.AdapterVersion) -> tables.AliasCandidate:
    found = next((one for one in row.candidates if one.version is version), None)
    if found is None:
        found = tables.AliasCandidate(version=version, weight=0, shadow=0, since=utc_now())
        row.candidates.append(found)
    return found


def end_shadows(row: tables.Alias, version: tables.AdapterVersion | None) -> None:
    """Of one version, None: of all."""
    for candidate in row.candidates:
        if version is None or candidate.version is version:
            candidate.shadow = 0
    drop_idle(row)


def drop_idle(row: tables.Alias) -> None:
    """The stable version is none of the candidates, nor is one with neither callers nor copies."""
    row.candidates[:] = [one for one in row.candidates if one.version is not row.version and (one.weight or one.shadow)]


def check_enabled(version: tables.AdapterVersion) -> None:
    """And its bytes are there."""
    if not version.enabled:
        raise InvalidRoute(f"Version {version.number} is disabled. Enable it first.", "version")
    check_bytes(version)


def check_bytes(version: tables.AdapterVersion) -> None:
    if version.artifact.broken is not None:
        raise InvalidRoute(
            f"Version {version.number} cannot be served: {version.artifact.broken}. Upload the same two files again "
            "before it gets requests.",
            "version",
        )
