"""Changing what an alias means. Each change is one transaction that bumps the generation and writes an audit row; a
version that is to get more of the callers than it has must obey the operator's rule."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy.orm import Session

from . import tables
from .audit import record
from .database import Database
from .errors import InvalidRoute, PromotionRefused, RouteChanged, UnknownAlias, VersionInUse
from .generation import bump_generation, hold_changes
from .names import DEFAULT, Reference, check_alias, parse_reference
from .promotion import PromotionRule
from .routes import Guard, Trip, check_share, check_weights, revision_of
from .rows import adapter_row, version_row
from .tables import DEFAULT_TENANT, utc_now
from .views import Adapter, adapter_view

GUARD: Final = "guard"
"""Actor of what the server does when a candidate fails its guard."""
ROLLBACK: Final = "alias.rollback"
NEW: Final = ""
"""Revision of a route that is not there yet."""


class AliasRoutes:
    """Methods raise InvalidName, UnknownAdapter and UnknownAlias for what is not there, InvalidRoute for a route that
    cannot be, and PromotionRefused where the operator's rule forbids it. `seen`: the revision of the route that the
    change is meant for, NEW: none is there yet, None: whichever; RouteChanged is raised where it has another one."""

    def __init__(self, database: Database, rule: PromotionRule | None) -> None:
        self._database, self._rule = database, rule

    def set(
        self,
        name: str,
        alias: str,
        selector: int | str | None,
        weights: Mapping[int, int] | None = None,
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        seen: str | None = None,
    ) -> Adapter:
        """Let `name@alias` mean the version that `name@selector` means now, but for the callers that `weights`, which
        are per cent by number and add up to 100, give to others. `selector` None: the stable version stays."""
        check_alias(alias)
        with self._database.write() as session:
            bump_generation(session)
            adapter = adapter_row(session, name, tenant)
            row = next((row for row in adapter.aliases if row.name == alias), None)
            _check_seen(f"{name}@{alias}", row, seen)
            if row is None:
                row = tables.Alias(name=alias, candidates=[])
            if selector is None and row.version is None:
                raise InvalidRoute(f"'{name}@{alias}' is new: say which version is its stable one.", "version")
            stable = row.version if selector is None else version_row(session, _reference(name, selector), tenant)
            self._set_stable(session, row, stable)
            self._set_weights(session, row, {stable.number: 100} if weights is None else weights, adapter)
            if row not in adapter.aliases:
                adapter.aliases.append(row)
            return self._changed(session, row, "alias.set", actor, **_detail(row))

    def promote(
        self,
        name: str,
        alias: str,
        selector: int | str | None = None,
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        seen: str | None = None,
    ) -> Adapter:
        """Make a candidate the stable version, for all callers; the only one unless it is named."""
        with self._database.write() as session:
            bump_generation(session)
            row = _alias_row(session, name, alias, tenant, seen)
            chosen, before = _candidate(row, selector), row.version.number
            self._set_stable(session, row, chosen)
            self._set_weights(session, row, {chosen.number: 100}, row.adapter)
            _end_shadows(row, chosen)
            return self._changed(session, row, "alias.promote", actor, version=chosen.number, before=before)

    def rollback(
        self,
        name: str,
        alias: str,
        selector: int | str | None = None,
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        seen: str | None = None,
    ) -> Adapter:
        """Take all candidates out; where there is none, go back to the stable version before. `selector` says to which
        of the two. What has been rolled back already stays as it is, so that a client may ask again.

        The operator's rule is not asked: what has answered all callers may always do so again.
        """
        with self._database.write() as session:
            hold_changes(session)
            row = _alias_row(session, name, alias, tenant, seen)
            back_to = _back_to(f"{name}@{alias}", row, selector)
            if back_to is row.version and not _is_shared(row):
                return adapter_view(row.adapter)
            bump_generation(session)
            if back_to is not row.version:
                _check_enabled(back_to)
                row.previous, row.version = row.version, back_to
            self._set_weights(session, row, {row.version.number: 100}, row.adapter)
            return self._changed(session, row, ROLLBACK, actor, version=row.version.number)

    def set_guard(
        self,
        name: str,
        alias: str,
        guard: Guard | None,
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        seen: str | None = None,
    ) -> Adapter:
        """Watch the candidates by these limits from now on; None: not at all."""
        if guard is not None:
            guard.check()
        with self._database.write() as session:
            bump_generation(session)
            row = _alias_row(session, name, alias, tenant, seen)
            row.guard = None if guard is None else msgspec.to_builtins(guard)
            limits = {} if guard is None else {"limits": row.guard}
            action = "alias.unguard" if guard is None else "alias.guard"
            return self._changed(session, row, action, actor, clear=False, **limits)

    def set_shadow(
        self,
        name: str,
        alias: str,
        selector: int | str | None,
        percent: int,
        *,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        seen: str | None = None,
    ) -> Adapter:
        """Copy so many per cent of the requests to the version that `name@selector` means now; None: copy none."""
        if selector is not None:
            check_share(percent)
        with self._database.write() as session:
            bump_generation(session)
            row = _alias_row(session, name, alias, tenant, seen)
            _end_shadows(row, None)
            if selector is None:
                return self._changed(session, row, "alias.unshadow", actor, clear=False)
            version = version_row(session, _reference(name, selector), tenant)
            if version is row.version:
                raise InvalidRoute(
                    f"Version {version.number} is the stable one: it answers these requests anyway.", "version"
                )
            _check_enabled(version)
            _get_or_add(row, version).shadow = percent
            detail = {"version": version.number, "percent": percent}
            return self._changed(session, row, "alias.shadow", actor, clear=False, **detail)

    def trip(
        self,
        name: str,
        alias: str,
        version: int,
        since: datetime,
        reason: str,
        figures: Mapping[str, float],
        *,
        guard: Guard,
        tenant: str = DEFAULT_TENANT,
    ) -> bool:
        """`guard` takes a candidate out. False where it has no share since then any more, or another guard: somebody
        was faster."""
        with self._database.write() as session:
            hold_changes(session)
            row = _alias_row(session, name, alias, tenant)
            found = [one for one in row.candidates if (one.version.number, one.since) == (version, since)]
            if not found or not found[0].weight or row.guard != msgspec.to_builtins(guard):
                return False
            bump_generation(session)
            weight, found[0].weight = found[0].weight, 0
            _drop_idle(row)
            row.trip = msgspec.to_builtins(Trip(version, weight, utc_now(), reason))
            detail = {"version": version, "weight": weight, "reason": reason, "figures": dict(figures)}
            self._changed(session, row, "alias.trip", GUARD, clear=False, **detail)
            return True

    def refusals(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Mapping[int, str]:
        """Versions that no alias can be moved to, also not when they are enabled, by number; and why, in words."""
        refused = {}
        with self._database.read() as session:
            for version in adapter_row(session, name, tenant).versions:
                try:
                    _check_bytes(version)
                    self._check(session, version)
                except (InvalidRoute, PromotionRefused) as error:
                    refused[version.number] = str(error)
        return refused

    def remove(
        self, name: str, alias: str, *, actor: str, tenant: str = DEFAULT_TENANT, seen: str | None = None
    ) -> Adapter:
        """The versions stay."""
        with self._database.write() as session:
            bump_generation(session)
            row = _alias_row(session, name, alias, tenant, seen)
            adapter = row.adapter
            adapter.aliases.remove(row)
            _record(session, row, adapter, "alias.remove", actor, version=row.version.number)
            return adapter_view(adapter)

    def _set_stable(self, session: Session, row: tables.Alias, version: tables.AdapterVersion) -> None:
        if row.version is version:
            return
        _check_enabled(version)
        self._check(session, version)
        row.previous, row.version = row.version, version

    def _set_weights(
        self, session: Session, row: tables.Alias, weights: Mapping[int, int], adapter: tables.Adapter
    ) -> None:
        check_weights(weights, row.version.number)
        shares = {number: weight for number, weight in weights.items() if weight and number != row.version.number}
        for candidate in row.candidates:
            if candidate.version.number not in shares:
                candidate.weight = 0
        for number, weight in shares.items():
            version = version_row(session, Reference(adapter.name, number), adapter.tenant.name)
            _check_enabled(version)
            if weight > sum(one.weight for one in row.candidates if one.version is version):
                self._check(session, version)
            candidate = _get_or_add(row, version)
            if not candidate.weight:
                candidate.since = utc_now()
            candidate.weight = weight
        _drop_idle(row)

    def _check(self, session: Session, version: tables.AdapterVersion) -> None:
        if self._rule is not None:
            self._rule.check(session, version)

    def _changed(
        self, session: Session, row: tables.Alias, action: str, actor: str, clear: bool = True, **detail: object
    ) -> Adapter:
        """`clear`: who changes the route has seen what the guard did."""
        row.updated_at, row.updated_by = utc_now(), actor
        if clear:
            row.trip, row.rolled_back = None, action == ROLLBACK
        _record(session, row, row.adapter, action, actor, **detail)
        return adapter_view(row.adapter)


def drop_versions(adapter: tables.Adapter, versions: Sequence[tables.AdapterVersion], whole: bool) -> None:
    """The versions are removed: aliases whose stable version is among them go, from the others they are taken out.

    Raises VersionInUse where the name would come to mean another version by that, unless all of it goes (`whole`).
    """
    for row in list(adapter.aliases):
        if row.version in versions:
            if row.name == DEFAULT and not whole:
                raise VersionInUse(
                    f"The alias '{DEFAULT}' lets '{adapter.name}' mean version {row.version.number}. Point the alias "
                    "at another version, or remove it, before you remove the version."
                )
            adapter.aliases.remove(row)
        row.candidates[:] = [one for one in row.candidates if one.version not in versions]
        row.previous = None if row.previous in versions else row.previous


def check_unrouted(adapter: tables.Adapter, version: tables.AdapterVersion) -> None:
    """Raise VersionInUse where an alias would lead its callers to a version that is served no more."""
    names = ", ".join(str(Reference(adapter.name, row.name)) for row in adapter.aliases if row.version is version)
    if names:
        raise VersionInUse(
            f"Version {version.number} of '{adapter.name}' answers the callers of {names}, who would be left without "
            "an answer. Point the alias at another version, roll it back, or remove it before you disable the version, "
            f"or disable all of '{adapter.name}'."
        )


def _alias_row(session: Session, name: str, alias: str, tenant: str, seen: str | None = None) -> tables.Alias:
    adapter = adapter_row(session, name, tenant)
    found = next((row for row in adapter.aliases if row.name == alias), None)
    if found is None:
        names = ", ".join(row.name for row in adapter.aliases) or "none"
        raise UnknownAlias(f"Adapter '{name}' has no alias {alias[:80]!a}. It has: {names}.")
    _check_seen(f"{name}@{alias}", found, seen)
    return found


def _check_seen(label: str, row: tables.Alias | None, seen: str | None) -> None:
    now = NEW if row is None else revision_of(row.updated_at)
    if seen in (None, now):
        return
    if row is None:
        raise RouteChanged(
            f"'{label}' was removed meanwhile, so nothing was done. Look at which aliases there are now."
        )
    if seen == NEW:
        raise RouteChanged(
            f"'{label}' is there already and means version {row.version.number}; change it instead of adding it."
        )
    raise RouteChanged(
        f"'{row.updated_by}' has changed '{label}' since it was looked at, so nothing was done. Load it again and look "
        "at what it is now."
    )


def _is_shared(row: tables.Alias) -> bool:
    """Whether there are callers to take back, or a deed of the guard that nobody has looked at."""
    return row.trip is not None or any(candidate.weight for candidate in row.candidates)


def _back_to(label: str, row: tables.Alias, selector: int | str | None) -> tables.AdapterVersion:
    """The stable version of the route after a rollback."""
    if selector is not None:
        known = [version for version in (row.version, row.previous) if version is not None]
        found = next((version for version in known if str(version.number) == str(selector)), None)
        if found is None:
            numbers = " or ".join(str(version.number) for version in known)
            raise InvalidRoute(
                f"'{label}' can be rolled back to version {numbers}. Any other has to be set.", "version"
            )
        return found
    if _is_shared(row) or row.rolled_back:
        return row.version
    if row.previous is None:
        raise InvalidRoute(f"'{label}' has no candidate and no version before: there is nothing to roll back.", "alias")
    return row.previous


def _candidate(row: tables.Alias, selector: int | str | None) -> tables.AdapterVersion:
    routed = [one.version for one in row.candidates if one.weight]
    known = routed if selector is None else [version for version in routed if str(version.number) == str(selector)]
    if len(known) == 1:
        return known[0]
    numbers = ", ".join(str(version.number) for version in routed) or "none"
    asked = "say which one" if len(routed) > 1 and selector is None else "give one a share first"
    raise InvalidRoute(f"A candidate is promoted, and the candidates are: {numbers}. To promote, {asked}.", "version")


def _get_or_add(row: tables.Alias, version: tables.AdapterVersion) -> tables.AliasCandidate:
    found = next((one for one in row.candidates if one.version is version), None)
    if found is None:
        found = tables.AliasCandidate(version=version, weight=0, shadow=0, since=utc_now())
        row.candidates.append(found)
    return found


def _end_shadows(row: tables.Alias, version: tables.AdapterVersion | None) -> None:
    """Of one version, None: of all."""
    for candidate in row.candidates:
        if version is None or candidate.version is version:
            candidate.shadow = 0
    _drop_idle(row)


def _drop_idle(row: tables.Alias) -> None:
    """The stable version is none of the candidates, nor is one with neither callers nor copies."""
    row.candidates[:] = [one for one in row.candidates if one.version is not row.version and (one.weight or one.shadow)]


def _check_enabled(version: tables.AdapterVersion) -> None:
    """And its bytes are there."""
    if not version.enabled:
        raise InvalidRoute(f"Version {version.number} is disabled. Enable it before it gets requests.", "version")
    _check_bytes(version)


def _check_bytes(version: tables.AdapterVersion) -> None:
    if version.artifact.broken is not None:
        raise InvalidRoute(
            f"Version {version.number} cannot be served: {version.artifact.broken}. Upload the same two files again "
            "before it gets requests.",
            "version",
        )


def _reference(name: str, selector: int | str) -> Reference:
    return parse_reference(f"{name}@{selector}")


def _detail(row: tables.Alias) -> dict[str, Any]:
    weights = {str(one.version.number): one.weight for one in row.candidates if one.weight}
    return {"version": row.version.number, **({"candidates": weights} if weights else {})}


def _record(
    session: Session, row: tables.Alias, adapter: tables.Adapter, action: str, actor: str, **detail: object
) -> None:
    subject = f"adapter:{Reference(adapter.name, row.name)}"
    record(session, actor, action, subject, tenant_id=adapter.tenant_id, **detail)
