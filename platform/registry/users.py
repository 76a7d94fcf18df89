"""People who log in to the dashboard. Passwords are stored as argon2id."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher
from sqlalchemy import select
from sqlalchemy.orm import Session

from . import tables
from .audit import record
from .database import Database
from .errors import WeakSecret
from .generation import hold_changes
from .names import check_label, is_label
from .tables import utc_now

ADMIN_ROLE = "admin"
MIN_PASSWORD_LENGTH = 8


@dataclass(frozen=True, slots=True)
class User:
    """`password_changed_at` belongs into the session cookie: a session older than it is over."""

    name: str
    role: str
    password_changed_at: datetime


class Users:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._passwords = PasswordHash((Argon2Hasher(),))

    @cached_property
    def _nobody(self) -> str:
        return self._passwords.hash(secrets.token_bytes(16))

    def get(self, name: str) -> User | None:
        with self._database.read() as session:
            row = _find(session, name)
            return None if row is None else _view(row)

    def verify(self, name: str, password: str) -> User | None:
        """The user if the password is right. Takes the same 0.1 s for unknown names. Call it off the event loop."""
        with self._database.read() as session:
            row = _find(session, name)
        stored = self._nobody if row is None else row.password_hash
        matches = self._passwords.verify(password.encode("utf-8", "surrogatepass"), stored)
        return _view(row) if row is not None and matches else None

    def set_password(self, name: str, password: str, *, actor: str, role: str = ADMIN_ROLE) -> User:
        """Create the user or change the password. Raises WeakSecret."""
        hashed = self._passwords.hash(check_password(password).encode("utf-8"))
        with self._database.write() as session:
            hold_changes(session)
            row = _find(session, name) or tables.User(name=check_label(name), role=role)
            row.password_hash, row.password_changed_at = hashed, utc_now()
            session.add(row)
            record(session, actor, "user.set_password", f"user:{name}")
            session.flush()
            return _view(row)


def check_password(password: str) -> str:
    if len(password) < MIN_PASSWORD_LENGTH or password != password.strip() or not password.isprintable():
        raise WeakSecret(
            f"The password must have at least {MIN_PASSWORD_LENGTH} printable characters, no space at either end. "
            "Choose a longer one."
        )
    return password


def _find(session: Session, name: str) -> tables.User | None:
    query = select(tables.User).where(tables.User.name == name)
    return session.scalars(query).one_or_none() if is_label(name) else None


def _view(row: tables.User) -> User:
    return User(row.name, row.role, row.password_changed_at)
