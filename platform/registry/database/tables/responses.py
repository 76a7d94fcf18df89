"""Responses that are kept, so that later ones can go on where they end."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from .table import Table, utc_now
from .usage import ACTOR_LENGTH


class StoredResponse(Table):
    """It goes with its age, or when its tenant has too many. Those that it follows were used as lately as itself."""

    __tablename__ = "stored_responses"
    __table_args__ = (Index("ix_stored_responses_tenant", "tenant_id", "used_at"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenants.id"))
    actor: Mapped[str] = mapped_column(String(ACTOR_LENGTH))
    """Who asked for it."""
    previous_id: Mapped[str | None] = mapped_column(String(64))
    """The response that it follows. No foreign key: that one may be deleted."""
    items: Mapped[bytes] = mapped_column(LargeBinary)
    """JSON: the items of its input, without those of responses before it."""
    document: Mapped[bytes] = mapped_column(LargeBinary)
    """JSON: the answer as it was given; its `output` has the items that follow the input's."""
    size: Mapped[int] = mapped_column(BigInteger)
    """Bytes of both."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    used_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    """When it was made, or a response that follows it."""
