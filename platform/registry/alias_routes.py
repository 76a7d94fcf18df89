"""Changing what an alias means. Each change is one transaction that bumps the generation and writes an audit row; a
version that is to get more of the callers than it has must obey the operator's rule."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy.orm import Session

from . import tables
from .alias_rows import (
    alias_row,
    back_to_version,
    candidate_version,
    check_bytes,
    check_enabled,
    check_seen,
    drop_idle,
    end_shadows,
    get_or_add,
    is_shared,
)
from .audit import record
from .database import Database
from .errors import InvalidRoute, PromotionRefused
from .generation import bump_generation, hold_changes
from .names import Reference, check_alias, parse_reference
from .promotion import PromotionRule
from .routes import Guard, Trip, check_share, check_weights
from .rows import adapter_row, version_row
from .tables import DEFAULT_TENANT, utc_now
from .views import Adapter, adapter_view

GUARD: Final = "guard"
"""Actor of what the server does when a candidate fails its guard."""
ROLLBACK: Final = "alias.rollback"


class AliasRoutes:
    """Methods raise InvalidName, UnknownAdapter and UnknownAlias for what is not there, InvalidRoute for a route that
    cannot be, and PromotionRefused where the operator's rule forbids it. `seen`: the revision of the route that the
    change is meant for, `alias_rows.NEW`: none is there yet, None: whichever; RouteChanged is raised where it has
    another one."""

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
            check_seen(f"{name}@{alias}", row, seen)
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
            row = alias_row(session, name, alias, tenant, seen)
            chosen, before = candidate_version(row, selector), row.version.number
            self._set_stable(session, row, chosen)
            self._set_weights(session, row, {chosen.number: 100}, row.adapter)
            end_shadows(row, chosen)
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
            row = alias_row(session, name, alias, tenant, seen)
            back_to = back_to_version(f"{name}@{alias}", row, selector)
            if back_to is row.version and not is_shared(row):
                return adapter_view(row.adapter)
            bump_generation(session)
            if back_to is not row.version:
                check_enabled(back_to)
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
            row = alias_row(session, name, alias, tenant, seen)
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
            row = alias_row(session, name, alias, tenant, seen)
            end_shadows(row, None)
            if selector is None:
                return self._changed(session, row, "alias.unshadow", actor, clear=False)
            version = version_row(session, _reference(name, selector), tenant)
            if version is row.version:
                raise InvalidRoute(
                    f"Version {version.number} is the stable one: it answers these requests anyway.", "version"
                )
            check_enabled(version)
            get_or_add(row, version).shadow = percent
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
            row = alias_row(session, name, alias, tenant)
            found = [one for one in row.candidates if (one.version.number, one.since) == (version, since)]
            if not found or not found[0].weight or row.guard != msgspec.to_builtins(guard):
                return False
            bump_generation(session)
            weight, found[0].weight = found[0].weight, 0
            drop_idle(row)
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
                    check_bytes(version)
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
            row = alias_row(session, name, alias, tenant, seen)
            adapter = row.adapter
            adapter.aliases.remove(row)
            _record(session, row, adapter, "alias.remove", actor, version=row.version.number)
            return adapter_view(adapter)

    def _set_stable(self, session: Session, row: tables.Alias, version: tables.AdapterVersion) -> None:
        if row.version is version:
            return
        check_enabled(version)
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
            check_enabled(version)
            if weight > sum(one.weight for one in row.candidates if one.version is version):
                self._check(session, version)
            candidate = get_or_add(row, version)
            if not candidate.weight:
                candidate.since = utc_now()
            candidate.weight = weight
        drop_idle(row)

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
