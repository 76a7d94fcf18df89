"""The tables. Rows of `artifacts` and `adapter_versions` say what was uploaded and never change their content;
what changes is desired state (enabled, pinned, aliases, removal), always together with the generation number.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

DEFAULT_TENANT = "default"


def utc_now() -> datetime:
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC on both sides; SQLite keeps no zone, so it is given back here."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Table(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        list[str]: JSON(),
        list[int]: JSON(),
    }


class Tenant(Table):
    __tablename__ = "tenants"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Generation(Table):
    """One row: how often desired state has changed. Updating it first makes changes wait for one another."""

    __tablename__ = "generation"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)


class Secret(Table):
    """Random bytes made on first use and shared by all processes on this database."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class Artifact(Table):
    """The bytes of an adapter and what preflight read in them; shared by every version with this digest."""

    __tablename__ = "artifacts"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    config_sha256: Mapped[str] = mapped_column(String(64), index=True)
    config_size: Mapped[int] = mapped_column(BigInteger)
    weights_sha256: Mapped[str] = mapped_column(String(64), index=True)
    weights_size: Mapped[int] = mapped_column(BigInteger)
    peft_type: Mapped[str] = mapped_column(String(63))
    rank: Mapped[int]
    alpha: Mapped[float]
    target_modules: Mapped[list[str]]
    parameters: Mapped[int] = mapped_column(BigInteger)
    vocab_size: Mapped[int] = mapped_column(default=0)
    """Tokens that it has rows for; 0: those of the base."""
    base_model: Mapped[str] = mapped_column(Text)
    """What the adapter's configuration calls its base; a label only."""
    invocation_tokens: Mapped[list[int] | None]
    """It acts on a prompt from the last occurrence of these on; none: on all of it. Null in rows older than this."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    broken: Mapped[str | None] = mapped_column(Text)
    """Why the bytes cannot be served; None while they can."""


class Adapter(Table):
    """A name of one tenant. A removed name may be used again; its version numbers go on counting."""

    __tablename__ = "adapters"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(63))
    enabled: Mapped[bool] = mapped_column(default=True)
    pinned: Mapped[bool] = mapped_column(default=False)
    """The version that the bare name means stays resident."""
    prompts_digest: Mapped[str | None] = mapped_column(ForeignKey("golden_prompts.digest"))
    """What its certificates are measured on; None: generated prompts."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_by: Mapped[str] = mapped_column(String(127))
    removed_at: Mapped[datetime | None]
    removed_by: Mapped[str | None] = mapped_column(String(127))

    tenant: Mapped[Tenant] = relationship()
    versions: Mapped[list["AdapterVersion"]] = relationship(back_populates="adapter", order_by="AdapterVersion.number")
    aliases: Mapped[list["Alias"]] = relationship(
        back_populates="adapter", order_by="Alias.name", cascade="all, delete-orphan"
    )


class Tokenizer(Table):
    """Added tokens and chat template that an adapter brings; shared by every version with this digest."""

    __tablename__ = "tokenizers"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    document: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class GoldenPrompts(Table):
    """Prompts that certificates are measured on; shared by every adapter with this digest."""

    __tablename__ = "golden_prompts"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    prompts: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Certificate(Table):
    """One measurement of what serving costs an adapter's answers: asked for, running, or ended.

    It belongs to content: every version with this digest shows it. Without a digest it is the base's own.
    """

    __tablename__ = "certificates"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    adapter_digest: Mapped[str | None] = mapped_column(ForeignKey("artifacts.digest"), index=True)
    prompts_digest: Mapped[str | None] = mapped_column(ForeignKey("golden_prompts.digest"))
    state: Mapped[str] = mapped_column(String(15), index=True)
    """`waiting`, `running`, `done` or `failed`."""
    coverage_digest: Mapped[str | None] = mapped_column(String(64))
    """Of everything that was measured; known once it is done."""
    agreement: Mapped[float | None]
    """Share of tokens that are most likely in both, as served; what promotion looks at."""
    document: Mapped[dict[str, Any] | None]
    problem: Mapped[str | None] = mapped_column(Text)
    """Why it failed."""
    worker: Mapped[str | None] = mapped_column(String(32))
    """Who runs it; it is anyone's again when `beat_at` is long ago."""
    beat_at: Mapped[datetime | None]
    progress: Mapped[float] = mapped_column(default=0.0)
    requested_by: Mapped[str] = mapped_column(String(127))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    ended_at: Mapped[datetime | None]


class AdapterVersion(Table):
    __tablename__ = "adapter_versions"
    __table_args__ = (UniqueConstraint("adapter_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    adapter_id: Mapped[int] = mapped_column(ForeignKey("adapters.id"))
    number: Mapped[int]
    digest: Mapped[str] = mapped_column(ForeignKey("artifacts.digest"), index=True)
    base_fingerprint: Mapped[str] = mapped_column(String(64))
    """The base model that preflight checked it against."""
    tokenizer_digest: Mapped[str | None] = mapped_column(ForeignKey("tokenizers.digest"))
    """None: it uses the base's."""
    report: Mapped[dict[str, Any]] = mapped_column(deferred=True)
    uploaded_by: Mapped[str] = mapped_column(String(127))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    enabled: Mapped[bool] = mapped_column(default=True)
    pinned: Mapped[bool] = mapped_column(default=False)
    removed_at: Mapped[datetime | None]
    removed_by: Mapped[str | None] = mapped_column(String(127))

    adapter: Mapped[Adapter] = relationship(back_populates="versions")
    artifact: Mapped[Artifact] = relationship()


class Alias(Table):
    __tablename__ = "aliases"
    __table_args__ = (UniqueConstraint("adapter_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    adapter_id: Mapped[int] = mapped_column(ForeignKey("adapters.id"))
    name: Mapped[str] = mapped_column(String(63))
    version_id: Mapped[int] = mapped_column(ForeignKey("adapter_versions.id"))
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_by: Mapped[str] = mapped_column(String(127))

    adapter: Mapped[Adapter] = relationship(back_populates="aliases")
    version: Mapped[AdapterVersion] = relationship()


class ApiKey(Table):
    __tablename__ = "api_keys"

    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    """Public part of the token: finds the row and names the key in logs."""
    hash: Mapped[str] = mapped_column(String(64))
    """HMAC-SHA256 of the whole token under the key secret, in hex."""
    name: Mapped[str] = mapped_column(String(127))
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_by: Mapped[str] = mapped_column(String(127))
    last_used_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revoked_by: Mapped[str | None] = mapped_column(String(127))

    tenant: Mapped[Tenant] = relationship()


class User(Table):
    __tablename__ = "users"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    role: Mapped[str] = mapped_column(String(31))
    password_hash: Mapped[str] = mapped_column(Text)
    password_changed_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class AuditRow(Table):
    """Who did what to what, written in the transaction that did it. Rows are only ever added."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id"))
    actor: Mapped[str] = mapped_column(String(127))
    """`user:<name>`, `key:<prefix>`, `cli` or `system`."""
    action: Mapped[str] = mapped_column(String(63))
    subject: Mapped[str] = mapped_column(String(255))
    detail: Mapped[dict[str, Any]]
