"""Logins that hold: random tokens, kept as hashes, so that a logout or a new password ends them for every process."""

import hashlib
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import joinedload

from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import LoginSession, utc_now
from ..errors import TenantDisabled
from .users import User, user_view


class Sessions:
    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, user: User, lifetime: timedelta, detail: Mapping[str, Any] | None = None) -> str | None:
        """The token of a new session; None when the user's password has changed since it was verified. `detail`: of
        its row in the audit log; None: it gets none. Raises TenantDisabled."""
        token, now = secrets.token_urlsafe(32), utc_now()
        query = select(tables.User).join(tables.Tenant)
        with self._database.write() as session:
            found = query.where(tables.User.name == user.name, tables.Tenant.name == user.tenant)
            row = session.scalars(found.with_for_update(of=tables.User)).one_or_none()
            if row is None or row.password_changed_at != user.password_changed_at:
                return None
            if row.tenant.disabled_at is not None:
                raise TenantDisabled(f"The tenant '{user.tenant}' is disabled. Ask the operator of this server.")
            session.execute(delete(LoginSession).where(LoginSession.expires_at <= now))
            session.add(LoginSession(token_hash=_hash(token), user_id=row.id, expires_at=now + lifetime))
            if detail is not None:
                name = f"user:{user.name}"
                record(session, name, "user.login", name, tenant_id=row.tenant_id, **detail)
        return token

    def find(self, token: str) -> User | None:
        """Whose session it is, while it holds and the tenant is not disabled."""
        query = (
            select(LoginSession)
            .where(LoginSession.token_hash == _hash(token), LoginSession.expires_at > utc_now())
            .options(joinedload(LoginSession.user).joinedload(tables.User.tenant))
        )
        with self._database.read() as session:
            row = session.scalars(query).one_or_none()
            return user_view(row.user) if row is not None and row.user.tenant.disabled_at is None else None

    def end(self, token: str) -> None:
        """Log out. Does nothing for a session that is over."""
        with self._database.write() as session:
            session.execute(delete(LoginSession).where(LoginSession.token_hash == _hash(token)))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
