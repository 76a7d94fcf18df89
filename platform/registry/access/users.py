"""People who log in to the dashboard, each in one tenant. Passwords are stored as argon2id."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, utc_now
from ..errors import LastAdmin, NameTaken, RegistryError, UnknownUser
from ..names import check_user_name, is_label
from ..revision import hold_changes
from .passwords import check_password
from .scopes import ADMIN_ROLE, ROLES
from .tenants import tenant_id


@dataclass(frozen=True, slots=True)
class User:
    """`password_changed_at`: every session made before is over."""

    name: str
    role: str
    password_changed_at: datetime
    tenant: str
    created_at: datetime


class Users:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._passwords = PasswordHash((Argon2Hasher(),))

    @cached_property
    def _nobody(self) -> str:
        return self._passwords.hash(secrets.token_bytes(16))

    def list(self, tenant: str = DEFAULT_TENANT) -> Sequence[User]:
        """By name."""
        query = select(tables.User).join(tables.Tenant).where(tables.Tenant.name == tenant)
        with self._database.read() as session:
            return [user_view(row) for row in session.scalars(query.order_by(tables.User.name))]

    def get(self, name: str, tenant: str = DEFAULT_TENANT) -> User | None:
        with self._database.read() as session:
            row = _find(session, name, tenant)
            return None if row is None else user_view(row)

    def require(self, name: str, tenant: str = DEFAULT_TENANT) -> User:
        """Raises UnknownUser."""
        with self._database.read() as session:
            return user_view(_found(session, name, tenant))

    def verify(self, name: str, password: str, tenant: str = DEFAULT_TENANT) -> User | None:
        """The user if the password is right. Takes the same 0.1 s for unknown names. Call it off the event loop."""
        with self._database.read() as session:
            row = _find(session, name, tenant)
            user, stored = (None, self._nobody) if row is None else (user_view(row), row.password_hash)
        matches = self._passwords.verify(password.encode("utf-8", "surrogatepass"), stored)
        return user if matches else None

    def create(self, name: str, password: str, role: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> User:
        """Raises InvalidName, NameTaken, WeakSecret, UnknownTenant, RegistryError for an unknown role."""
        check_user_name(name)
        _check_role(role)
        hashed = self._hashed(password)
        with self._database.write() as session:
            hold_changes(session)
            if _find(session, name, tenant) is not None:
                raise NameTaken(f"The user '{name}' already exists. Choose another name.")
            row = tables.User(name=name, role=role, password_hash=hashed, tenant_id=tenant_id(session, tenant))
            session.add(row)
            session.flush()
            _record(session, actor, "user.create", row, role=role)
            return user_view(row)

    def set_role(self, name: str, role: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> User:
        """From the next request on. Raises UnknownUser, LastAdmin, RegistryError for an unknown role."""
        _check_role(role)
        with self._database.write() as session:
            hold_changes(session)
            row = _found(session, name, tenant)
            if role != row.role:
                _refuse_last_admin(session, row)
                row.role = role
                _record(session, actor, "user.set_role", row, role=role)
            return user_view(row)

    def set_password(
        self, name: str, password: str, *, actor: str, role: str | None = ADMIN_ROLE, tenant: str = DEFAULT_TENANT
    ) -> User:
        """Change the password, which ends all sessions, or create the user with `role`. Raises WeakSecret, and
        UnknownUser where there is none and no role."""
        hashed = self._hashed(password)
        with self._database.write() as session:
            hold_changes(session)
            row = _find(session, name, tenant) if role else _found(session, name, tenant)
            if row is None:
                row = _new(session, name, tenant, role or ADMIN_ROLE)
            row.password_hash, row.password_changed_at = hashed, utc_now()
            session.add(row)
            session.flush()
            session.execute(delete(tables.LoginSession).where(tables.LoginSession.user_id == row.id))
            _record(session, actor, "user.set_password", row)
            return user_view(row)

    def remove(self, name: str, *, actor: str, tenant: str = DEFAULT_TENANT) -> None:
        """With all sessions. Raises UnknownUser, LastAdmin."""
        with self._database.write() as session:
            hold_changes(session)
            row = _found(session, name, tenant)
            _refuse_last_admin(session, row)
            _record(session, actor, "user.remove", row)
            session.execute(delete(tables.LoginSession).where(tables.LoginSession.user_id == row.id))
            session.delete(row)

    def _hashed(self, password: str) -> str:
        return self._passwords.hash(check_password(password).encode("utf-8"))


def user_view(row: tables.User) -> User:
    return User(row.name, row.role, row.password_changed_at, row.tenant.name, row.created_at)


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise RegistryError(f"role must be one of {', '.join(ROLES)}; got {role[:40]!a}.")


def _new(session: Session, name: str, tenant: str, role: str) -> tables.User:
    check_user_name(name)
    return tables.User(name=name, role=role, tenant_id=tenant_id(session, tenant))


def _find(session: Session, name: str, tenant: str) -> tables.User | None:
    query = select(tables.User).join(tables.Tenant).where(tables.User.name == name, tables.Tenant.name == tenant)
    return session.scalars(query).one_or_none() if is_label(name) and is_label(tenant) else None


def _found(session: Session, name: str, tenant: str) -> tables.User:
    row = _find(session, name, tenant)
    if row is None:
        raise UnknownUser(f"There is no user {name[:63]!a}.")
    return row


def _refuse_last_admin(session: Session, row: tables.User) -> None:
    others = select(func.count()).where(
        tables.User.tenant_id == row.tenant_id, tables.User.role == ADMIN_ROLE, tables.User.id != row.id
    )
    if row.role == ADMIN_ROLE and not session.scalars(others).one():
        raise LastAdmin(f"'{row.name}' is the last admin of this tenant. Make another user an admin first.")


def _record(session: Session, actor: str, action: str, row: tables.User, **detail: object) -> None:
    record(session, actor, action, f"user:{row.name}", tenant_id=row.tenant_id, **detail)
