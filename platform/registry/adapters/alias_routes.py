"""Changing what an alias means. Each change is one transaction that bumps the revision and writes an audit row; a
version that is to get more of the callers than it has must obey the operator's rule."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy.orm import Session

from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, utc_now
from ..errors import InvalidRoute, PromotionRefused
from ..names import DEFAULT, Reference, check_alias, parse_reference
from ..revision import bump_revision, hold_changes
from .activation import Activation
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
from .promotion import PromotionRule
from .route_shares import RouteShares
from .routes import CALLER, Guard, ShareBy, Trip, check_share
from .rows import adapter_row, version_row
from .undo import undoable
from .views import Adapter, adapter_view

GUARD: Final = "guard"
"""Actor of what the server does when a candidate fails its guard."""
PROMOTE: Final = "alias.promote"
ROLLBACK: Final = "alias.rollback"


class AliasRoutes:
    """Methods raise InvalidName, UnknownAdapter and UnknownAlias for what is not there, InvalidRoute for a route that
    cannot be, and PromotionRefused where the operator's rule forbids it. `seen`: the ETag of the route that the
    change is meant for, `alias_rows.NEW`: none is there yet, None: whichever; RouteChanged is raised where it has
    another one."""

    def __init__(self, database: Database, rule: PromotionRule | None) -> None:
        self._database, self._shares = database, RouteShares(rule)

    def set(
        self,
        name: str,
        alias: str,
        selector: int | str | None,
        weights: Mapping[int, int] | None = None,
        *,
        share_by: ShareBy | None = None,
        actor: str,
        tenant: str = DEFAULT_TENANT,
        seen: str | None = None,
    ) -> Adapter:
        """Let `name@alias` mean the version that `name@selector` means now, but for the callers that `weights`, which
        are per cent by number and add up to 100, give to others. `selector` None: the stable version stays; `share_by`
        None: as it was, of a new route by caller."""
        check_alias(alias)
        with self._database.write() as session:
            bump_revision(session)
            adapter = adapter_row(session, name, tenant)
            row = next((row for row in adapter.aliases if row.name == alias), None)
            check_seen(f"{name}@{alias}", row, seen)
            if row is None:
                row = tables.Alias(name=alias, candidates=[])
            if selector is None and row.version is None:
                raise InvalidRoute(f"'{name}@{alias}' is new. Name its stable version.", "version")
            stable = row.version if selector is None else version_row(session, _reference(name, selector), tenant)
            if row not in adapter.aliases and alias == DEFAULT and stable.number == _current(adapter):
                row.version = stable  # it answers the name already, so no rule is asked
            with undoable(session, adapter, "alias.set", _subject(name, alias), actor):
                return self._set(session, adapter, row, stable, weights, share_by, actor)

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
        with self._change(name, alias, tenant, seen) as (session, row):
            chosen, before = candidate_version(row, selector), row.version.number
            with undoable(session, row.adapter, PROMOTE, _subject(name, alias), actor):
                self._shares.set_stable(session, row, chosen)
                self._shares.set_weights(session, row, {chosen.number: 100}, row.adapter)
                end_shadows(row, chosen)
                return self._changed(session, row, PROMOTE, actor, version=chosen.number, before=before)

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
        with self._change(name, alias, tenant, seen, begin=hold_changes) as (session, row):
            back_to = back_to_version(f"{name}@{alias}", row, selector)
            if back_to is row.version and not is_shared(row):
                return adapter_view(row.adapter)
            bump_revision(session)
            with undoable(session, row.adapter, ROLLBACK, _subject(name, alias), actor):
                if back_to is not row.version:
                    check_enabled(back_to)
                    row.previous, row.version = row.version, back_to
                self._shares.set_weights(session, row, {row.version.number: 100}, row.adapter)
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
        with self._change(name, alias, tenant, seen) as (session, row):
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
        with self._change(name, alias, tenant, seen) as (session, row):
            end_shadows(row, None)
            if selector is None:
                return self._changed(session, row, "alias.unshadow", actor, clear=False)
            version = version_row(session, _reference(name, selector), tenant)
            if version is row.version:
                raise InvalidRoute(
                    f"Version {version.number} is the stable version and serves these requests anyway.", "version"
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
        with self._change(name, alias, tenant, begin=hold_changes) as (session, row):
            found = [one for one in row.candidates if (one.version.number, one.since) == (version, since)]
            if not found or not found[0].weight or row.guard != msgspec.to_builtins(guard):
                return False
            bump_revision(session)
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
                    self._shares.check(session, version)
                except (InvalidRoute, PromotionRefused) as error:
                    refused[version.number] = str(error)
        return refused

    def remove(
        self, name: str, alias: str, *, actor: str, tenant: str = DEFAULT_TENANT, seen: str | None = None
    ) -> Adapter:
        """The versions stay."""
        with self._change(name, alias, tenant, seen) as (session, row):
            adapter = row.adapter
            with undoable(session, adapter, "alias.remove", _subject(name, alias), actor):
                adapter.aliases.remove(row)
                _record(session, row, adapter, "alias.remove", actor, version=row.version.number)
            return adapter_view(adapter)

    def activate(
        self,
        session: Session,
        adapter: tables.Adapter,
        version: tables.AdapterVersion,
        before: int | None,
        activation: Activation,
        actor: str,
    ) -> None:
        """Within another change: let the bare name lead to a new version as `activation` says; `before` is the number
        that it meant without. Nothing is to be done where it has meant none other."""
        if before in (None, version.number):
            return
        known = {row.number: row for row in adapter.versions}
        route = next((row for row in adapter.aliases if row.name == DEFAULT), None)
        # What has answered the name may go on, so no rule is asked for it.
        row = route or tables.Alias(name=DEFAULT, candidates=[], version=known[before])
        match activation.mode:
            case "inactive" if route is None:
                self._set(session, adapter, row, known[before], None, None, actor)
            case "live" if route is not None:
                self._set(session, adapter, row, version, None, None, actor)
            case "share":
                shares = {one.version.number: one.weight for one in row.candidates} | {
                    version.number: activation.percent
                }
                weights = {before: 100 - sum(shares.values()), **shares}
                self._set(session, adapter, row, known[before], weights, activation.share_by, actor)

    @contextmanager
    def _change(
        self,
        name: str,
        alias: str,
        tenant: str,
        seen: str | None = None,
        begin: Callable[[Session], object] = bump_revision,
    ) -> Iterator[tuple[Session, tables.Alias]]:
        """One transaction on the alias that is there; no other change runs beside it."""
        with self._database.write() as session:
            begin(session)
            yield session, alias_row(session, name, alias, tenant, seen)

    def _set(
        self,
        session: Session,
        adapter: tables.Adapter,
        row: tables.Alias,
        stable: tables.AdapterVersion,
        weights: Mapping[int, int] | None,
        share_by: ShareBy | None,
        actor: str,
    ) -> Adapter:
        row.share_by = share_by or row.share_by or CALLER
        self._shares.set_stable(session, row, stable)
        self._shares.set_weights(session, row, {stable.number: 100} if weights is None else weights, adapter)
        if row not in adapter.aliases:
            adapter.aliases.append(row)
        return self._changed(session, row, "alias.set", actor, **_detail(row))

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
    shared = {"candidates": weights, "share_by": row.share_by} if weights else {}
    return {"version": row.version.number, **shared}


def _current(adapter: tables.Adapter) -> int | None:
    """Number of what the bare name means."""
    current = adapter_view(adapter).current()
    return None if current is None else current.number


def _subject(name: str, alias: str) -> str:
    return f"adapter:{Reference(name, alias)}"


def _record(
    session: Session, row: tables.Alias, adapter: tables.Adapter, action: str, actor: str, **detail: object
) -> None:
    record(session, actor, action, _subject(adapter.name, row.name), tenant_id=adapter.tenant_id, **detail)
