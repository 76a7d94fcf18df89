"""All rows of the audit log that are wanted, as a file to download."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from starlette.responses import StreamingResponse

from loraplex.registry.audit import AuditFilter, AuditLog

from ..audit_file import Format, parts_of


def export(audit: AuditLog, wanted: AuditFilter, format: Format) -> StreamingResponse:
    """Newest first, as a file to keep."""
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="audit-{wanted.tenant or "all"}.{format}"',
    }
    media_type = "text/csv; charset=utf-8" if format == "csv" else "application/jsonl"
    return StreamingResponse(_streamed(parts_of(audit, wanted, format)), media_type=media_type, headers=headers)


async def _streamed(parts: Iterator[str]) -> AsyncIterator[str]:
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        yield part
