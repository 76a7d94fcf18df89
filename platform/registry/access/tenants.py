"""Whose rows are whose. One tenant, `default`, exists from the start: its admins operate the server.

A tenant is never deleted and its name never used again, so that neither caches nor the books confuse two of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, utc_now
from ..errors import NameTaken, RegistryError, UnknownTenant
from ..names import check_tenant_name, is_label
from ..revision import bump_revision
from .quotas import OPEN, Quota, quota_of, set_quota


@dataclass(frozen=True, slots=True)
class Tenant:
    """`disabled_at`: since when its keys, sessions and adapters are refused; None while they are not."""

    id: int
    name: str
    created_at: datetime
    disabled_at: datetime | None
    quota: Quota


@dataclass(frozen=True, slots=True)
class TenantCounts:
    """What of a tenant is in use: not what was removed or revoked."""

    adapters: int = 0
    keys: int = 0
    users: int = 0


class Tenants:
    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self) -> Sequence[Tenant]:
        """All of them by name, disabled ones too."""
        with self._database.read() as session:
            return load_tenants(session)

    def counts(self) -> Mapping[str, TenantCounts]:
        """Of each tenant, by name."""
        adapters = select(tables.Adapter.tenant_id, func.count()).where(tables.Adapter.removed_at.is_(None))
        keys = select(tables.ApiKey.tenant_id, func.count()).where(tables.ApiKey.revoked_at.is_(None))
        users = select(tables.User.tenant_id, func.count())
        with self._database.read() as session:
            found = [dict(session.execute(query.group_by("tenant_id")).all()) for query in (adapters, keys, users)]
            names = session.execute(select(tables.Tenant.id, tables.Tenant.name)).all()
            return {name: TenantCounts(*(counts.get(id, 0) for counts in found)) for id, name in names}

    def get(self, name: str) -> Tenant:
        """Raises UnknownTenant."""
        with self._database.read() as session:
            return _view(tenant_row(session, name))

    def create(self, name: str, *, actor: str, quota: Quota = OPEN) -> Tenant:
        """Raises InvalidName, NameTaken, RegistryError for a limit that is none."""
        check_tenant_name(name)
        with self._database.write() as session:
            bump_revision(session)
            if _find(session, name) is not None:
                raise NameTaken(f"The tenant '{name}' already exists. Choose another name.")
            row = tables.Tenant(name=name)
            limits = set_quota(row, quota)
            session.add(row)
            session.flush()
            record(session, actor, "tenant.create", f"tenant:{name}", tenant_id=row.id, **limits)
            return _view(row)

    def set_quota(self, name: str, quota: Quota, *, actor: str) -> Tenant:
        """For all its keys and users together, instead of the old one. Raises UnknownTenant, RegistryError."""
        with self._database.write() as session:
            bump_revision(session)
            row = tenant_row(session, name)
            limits = set_quota(row, quota)
            record(session, actor, "tenant.limit", f"tenant:{name}", tenant_id=row.id, **limits)
            return _view(row)

    def set_disabled(self, name: str, disabled: bool, *, actor: str) -> Tenant:
        """From the next refresh on nothing of it is let in or served; running requests end well. Raises UnknownTenant,
        RegistryError for the operator's own."""
        if disabled and name == DEFAULT_TENANT:
            raise RegistryError(f"The tenant '{DEFAULT_TENANT}' operates this server and cannot be disabled.")
        with self._database.write() as session:
            bump_revision(session)
            row = tenant_row(session, name)
            if bool(row.disabled_at) != disabled:
                row.disabled_at = utc_now() if disabled else None
                action = "tenant.disable" if disabled else "tenant.enable"
                record(session, actor, action, f"tenant:{name}", tenant_id=row.id)
            return _view(row)


def load_tenants(session: Session) -> Sequence[Tenant]:
    """All of them by name."""
    return [_view(row) for row in session.scalars(select(tables.Tenant).order_by(tables.Tenant.name))]


def tenant_row(session: Session, name: str) -> tables.Tenant:
    """Raises UnknownTenant."""
    row = _find(session, name)
    if row is None:
        raise UnknownTenant(f"There is no tenant {name[:80]!a}.")
    return row


def tenant_id(session: Session, name: str) -> int:
    """Raises UnknownTenant."""
    return tenant_row(session, name).id


def _find(session: Session, name: str) -> tables.Tenant | None:
    query = select(tables.Tenant).where(tables.Tenant.name == name)
    return session.scalars(query).one_or_none() if is_label(name) else None


def _view(row: tables.Tenant) -> Tenant:
    return Tenant(row.id, row.name, row.created_at, row.disabled_at, quota_of(row))
