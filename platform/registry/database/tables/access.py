"""Who may do what, and who did what: tenants, keys, people, secrets, the audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .table import Table, utc_now


class Limited:
    """Columns of who has a quota (`quotas.py`); null: no limit."""

    requests_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    max_concurrent: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)


class Tenant(Limited, Table):
    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    disabled_at: Mapped[datetime | None]
    """Its keys and sessions open nothing and its adapters are not served; all rows stay."""


class ApiKey(Limited, Table):
    __tablename__ = "api_keys"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    """Public part of the token: finds the row and names the key in logs."""
    hash: Mapped[str] = mapped_column(String(64))
    """HMAC-SHA256 of the whole token under the key secret, in hex."""
    name: Mapped[str] = mapped_column(String(127))
    scopes: Mapped[list[str]]
    adapters: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Names of the models it is for, the base's among them where it may use that; null: all of the tenant."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_by: Mapped[str] = mapped_column(String(127))
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revoked_by: Mapped[str | None] = mapped_column(String(127))

    tenant: Mapped[Tenant] = relationship()


class User(Table):
    __tablename__ = "users"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(63))
    role: Mapped[str] = mapped_column(String(31))
    password_hash: Mapped[str] = mapped_column(Text)
    password_changed_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)

    tenant: Mapped[Tenant] = relationship()


class LoginSession(Table):
    """A login that still holds. It goes with a logout, a new password, and its user."""

    __tablename__ = "sessions"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the cookie, in hex: who reads the table cannot log in with it."""
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime] = mapped_column(index=True)

    user: Mapped[User] = relationship()


class Secret(Table):
    """Random bytes made on first use and shared by all processes on this database."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class AuditRow(Table):
    """Who did what to what, written in the transaction that did it. Rows are only ever added (`audit.py`)."""

    __tablename__ = "audit"
    __table_args__ = (UniqueConstraint("tenant_id", "number"),)

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    """One more than that of the row before."""
    at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id"))
    number: Mapped[int] = mapped_column(BigInteger)
    """One more than that of the tenant's row before: its admins see this one, as ids tell of all tenants."""
    actor: Mapped[str] = mapped_column(String(127))
    """`user:<name>`, `key:<prefix>`, `cli` or `system`; who is of another tenant has its name in front."""
    action: Mapped[str] = mapped_column(String(63))
    subject: Mapped[str] = mapped_column(String(255))
    detail: Mapped[dict[str, Any]]
    hash: Mapped[str] = mapped_column(String(64))
    """SHA-256 over the hash of the row before and this row's content, in hex."""

    tenant: Mapped[Tenant | None] = relationship()


class AuditHead(Table):
    """One row: the last of the audit log. Who adds one takes this first."""

    __tablename__ = "audit_head"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_id: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[str] = mapped_column(String(64))
