"""What is known of a file and of a batch, and one page of a list of either."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from ..database import tables

ENDED: Final = ("completed", "failed", "expired", "cancelled")
UNFINISHED: Final = ("validating", "in_progress", "finalizing", "cancelling")
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class File:
    id: str
    tenant: str
    purpose: str
    filename: str
    size: int
    created_at: datetime
    created_by: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`created_by`: whose requests the lines are. `errors`: why it failed."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    status: str
    created_at: datetime
    created_by: str
    metadata: Mapping[str, str] | None
    output_seconds: int | None
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None
    errors: Sequence[Mapping[str, Any]] | None
    output_file_id: str | None
    error_file_id: str | None
    total: int
    completed: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    booked_bytes: int

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    items: Sequence[Item]
    has_more: bool


def file_view(row: tables.File) -> File:
    return File(
        row.id,
        row.tenant.name,
        row.purpose,
        row.filename,
        row.size,
        row.created_at,
        row.created_by,
        row.expires_at,
    )


def batch_view(row: tables.Batch) -> Batch:
    own: dict[str, Any] = {"tenant": row.tenant.name, "metadata": row.details}
    same = {name: getattr(row, name) for name in Batch.__dataclass_fields__ if name not in own}
    return Batch(**own, **same)
