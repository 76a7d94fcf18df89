"""What serving costs an adapter's answers: measurements, and the prompts they are made on."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from .access import Tenant
from .table import Table, utc_now


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
    cause: Mapped[str | None] = mapped_column(Text)
    """What went wrong in the server itself, for its operator."""
    worker: Mapped[str | None] = mapped_column(String(32))
    """Who runs it; it is anyone's again when `beat_at` is long ago."""
    beat_at: Mapped[datetime | None]
    progress: Mapped[float] = mapped_column(default=0.0)
    attempts: Mapped[int] = mapped_column(default=0)
    """How often it was begun and neither ended nor given back."""
    serving: Mapped[str | None] = mapped_column(String(64))
    """How the server serves that is to be measured (`web/certificates/served.py: ServedPath.serving`); None: any."""
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenants.id"), index=True)
    """Of who asked for it; None: the server did by itself."""
    requested_by: Mapped[str] = mapped_column(String(127))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    ended_at: Mapped[datetime | None]

    tenant: Mapped[Tenant | None] = relationship()


class Certifier(Table):
    """Servers that measure certificates, by how they serve."""

    __tablename__ = "certifiers"

    serving: Mapped[str] = mapped_column(String(64), primary_key=True)
    seen_at: Mapped[datetime]
    """When one of them last looked for something to measure, or was at it; to the minute."""
