"""Files that tenants keep here, and the batches of requests that are made of them."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .access import Tenant
from .table import Table, utc_now

Number = BigInteger().with_variant(Integer(), "sqlite")


class File(Table):
    """One file of the artifact store. The row appears after its bytes and goes before them."""

    __tablename__ = "files"

    number: Mapped[int] = mapped_column(Number, primary_key=True)
    """Lists are in this order."""
    id: Mapped[str] = mapped_column(String(32), unique=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"), index=True)
    purpose: Mapped[str] = mapped_column(String(15))
    """`batch`, or `batch_output` for what a batch has made."""
    filename: Mapped[str] = mapped_column("name", Text)
    """As the client calls it."""
    size: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_by: Mapped[str] = mapped_column(String(127))
    expires_at: Mapped[datetime | None] = mapped_column(index=True)

    tenant: Mapped[Tenant] = relationship()


class Batch(Table):
    """Requests of one file, and how far they are. What has run is in its journal until it ends (`journal.py`)."""

    __tablename__ = "batches"

    number: Mapped[int] = mapped_column(Number, primary_key=True)
    """Lists are in this order."""
    id: Mapped[str] = mapped_column(String(32), unique=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"), index=True)
    endpoint: Mapped[str] = mapped_column(String(63))
    input_file_id: Mapped[str] = mapped_column(String(32), index=True)
    status: Mapped[str] = mapped_column(String(15), index=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    created_by: Mapped[str] = mapped_column(String(127))
    """The actor whose requests its lines are."""
    details: Mapped[dict[str, Any] | None] = mapped_column("metadata", JSON(none_as_null=True))
    """Metadata, as the client gave them."""
    output_seconds: Mapped[int | None]
    """How long its output files are kept; null: as long as the server keeps files."""
    expires_at: Mapped[datetime]
    """When it ends, whether all lines have run or not."""
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """Why it failed, one entry for each reason."""
    output_file_id: Mapped[str | None] = mapped_column(String(32))
    error_file_id: Mapped[str | None] = mapped_column(String(32))
    total: Mapped[int] = mapped_column(default=0)
    """Lines; known once it is in progress."""
    completed: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    booked_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    """How much of the journal is in the usage ledger and in the counts above."""

    tenant: Mapped[Tenant] = relationship()
