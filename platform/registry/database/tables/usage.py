"""What was used: counts by hour and by day that are only ever added to, and the requests that have begun and not ended
yet."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from .table import Table, utc_now

ACTOR_LENGTH = 127
ADAPTER_LENGTH = 600
"""Of a sum, the names with a plus between them."""


class Counted:
    """Columns of who used what, and how much. Tokens of `unknown` requests are what was reserved for them."""

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    day: Mapped[str] = mapped_column(String(10), index=True)
    """In UTC, as 2026-11-22, so that a range of days is a range of strings."""
    actor: Mapped[str] = mapped_column(String(ACTOR_LENGTH))
    adapter_digest: Mapped[str] = mapped_column(String(64))
    """Empty: the base alone."""
    adapter_name: Mapped[str] = mapped_column(String(ADAPTER_LENGTH))
    requests: Mapped[int] = mapped_column(BigInteger)
    errors: Mapped[int] = mapped_column(BigInteger)
    unknown: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    unknown_tokens: Mapped[int] = mapped_column(BigInteger)


class UsageRow(Counted, Table):
    """One hour of one caller with one version."""

    __tablename__ = "usage"
    __table_args__ = (
        UniqueConstraint("tenant_id", "day", "hour", "actor", "adapter_digest", "adapter_name"),
        Index("ix_usage_adapter", "tenant_id", "adapter_name", "day"),
    )

    hour: Mapped[int]


class UsageDay(Counted, Table):
    """The sums of a day's hours, written together with them: a month is added up from these."""

    __tablename__ = "usage_days"
    __table_args__ = (UniqueConstraint("tenant_id", "day", "actor", "adapter_digest", "adapter_name"),)


class UsageWriter(Table):
    """A process that counts requests; `batch` is the last of its batches that was booked."""

    __tablename__ = "usage_writers"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    batch: Mapped[int] = mapped_column(BigInteger)
    beat_at: Mapped[datetime] = mapped_column(default=utc_now)


class OpenRequest(Table):
    """A request that runs, or ran when its writer died."""

    __tablename__ = "open_requests"

    writer: Mapped[str] = mapped_column(String(32), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    day: Mapped[str] = mapped_column(String(10))
    hour: Mapped[int]
    actor: Mapped[str] = mapped_column(String(ACTOR_LENGTH))
    adapter_digest: Mapped[str] = mapped_column(String(64))
    adapter_name: Mapped[str] = mapped_column(String(ADAPTER_LENGTH))
    reserved_tokens: Mapped[int] = mapped_column(BigInteger)
