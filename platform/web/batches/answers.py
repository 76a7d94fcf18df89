"""Files and batches as OpenAI's clients read them. Moments are seconds since the epoch."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from loraplex.registry.batches.views import Batch, File, Page


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: Sequence[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class RequestCounts(msgspec.Struct, frozen=True):
    total: int
    completed: int
    failed: int


class BatchError(msgspec.Struct, frozen=True):
    """`line`: of the input file, from 1; null: none in particular."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct, frozen=True):
    data: Sequence[BatchError]
    object: Literal["list"] = "list"


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class BatchUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: validating, in_progress, finalizing, completed, failed, expired, cancelling or cancelled."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"] = "24h"
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: Sequence[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


def file_object(file: File) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size,
        created_at=_seconds(file.created_at),
        expires_at=_seconds_or_none(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
    )


def file_list(page: Page[File]) -> FileList:
    return FileList(data=[file_object(file) for file in page.items], **_ends(page))


def batch_object(batch: Batch) -> BatchObject:
    moments: dict[str, Any] = {
        name: _seconds_or_none(getattr(batch, name))
        for name in BatchObject.__struct_fields__
        if name.endswith("_at") and name not in ("created_at", "expires_at")
    }
    errors = [BatchError(**one) for one in batch.errors or ()]
    return BatchObject(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=BatchErrors(errors) if errors else None,
        input_file_id=batch.input_file_id,
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=_seconds(batch.created_at),
        expires_at=_seconds(batch.expires_at),
        request_counts=RequestCounts(batch.total, batch.completed, batch.failed),
        usage=_usage(batch),
        metadata=None if batch.metadata is None else dict(batch.metadata),
        **moments,
    )


def batch_list(page: Page[Batch]) -> BatchList:
    return BatchList(data=[batch_object(batch) for batch in page.items], **_ends(page))


def _usage(batch: Batch) -> BatchUsage:
    return BatchUsage(
        batch.prompt_tokens,
        CachedTokens(batch.cached_tokens),
        batch.completion_tokens,
        ReasoningTokens(batch.reasoning_tokens),
        batch.prompt_tokens + batch.completion_tokens,
    )


def _ends(page: Page[Any]) -> dict[str, Any]:
    ids = [item.id for item in page.items]
    return {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None, "has_more": page.has_more}


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _seconds_or_none(moment: datetime | None) -> int | None:
    return None if moment is None else _seconds(moment)
