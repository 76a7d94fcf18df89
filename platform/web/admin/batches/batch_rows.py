"""Batches as their page shows them: how far each is, and where its results are. Never a line of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loraplex.registry.batches.views import Batch

from ...units import age_words, count_words

GROUPS: Final = {"": "All", "running": "Running", "ended": "Ended"}
"""What the page can be narrowed to."""
TONES: Final = {"completed": "good", "failed": "bad", "expired": "bad", "cancelled": "warn", "cancelling": "warn"}


@dataclass(frozen=True, slots=True)
class BatchRow:
    """`share`: per cent of its lines that have ended; None while their number is not known. `reason`: why it failed."""

    id: str
    endpoint: str
    maker: str
    status: str
    tone: str
    reason: str
    share: int | None
    lines: str
    failed: str
    tokens: str
    created: str
    created_iso: str
    output: str
    errors: str
    can_be_cancelled: bool


def matching_batches(batches: Sequence[Batch], search: str, group: str, names: Mapping[str, str]) -> list[Batch]:
    """Whose id, maker or metadata contain `search`; `group` is one of GROUPS."""
    wanted = search.strip().lower()
    return [batch for batch in batches if _is_in(batch, group) and wanted in _words(batch, names)]


def batch_row(batch: Batch, names: Mapping[str, str]) -> BatchRow:
    done, total = batch.completed + batch.failed, batch.total
    reasons = batch.errors or ()
    more = f" ({len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return BatchRow(
        id=batch.id,
        endpoint=batch.endpoint,
        maker=names.get(batch.created_by, batch.created_by),
        status=batch.status.replace("_", " "),
        tone=TONES.get(batch.status, ""),
        reason=f"{reasons[0]['message']}{more}" if reasons else "",
        share=100 * done // total if total else None,
        lines=f"{done:,} of {count_words(total, 'line')}" if total else "–",
        failed=f"{batch.failed:,} failed" if batch.failed else "",
        tokens=f"{batch.completion_tokens:,} of {batch.prompt_tokens:,}",
        created=age_words(batch.created_at),
        created_iso=batch.created_at.isoformat(timespec="seconds"),
        output=batch.output_file_id or "",
        errors=batch.error_file_id or "",
        can_be_cancelled=not batch.has_ended and batch.status != "cancelling",
    )


def _is_in(batch: Batch, group: str) -> bool:
    return group not in GROUPS or not group or batch.has_ended == (group == "ended")


def _words(batch: Batch, names: Mapping[str, str]) -> str:
    details = " ".join(f"{name} {value}" for name, value in (batch.metadata or {}).items())
    return f"{batch.id} {batch.created_by} {names.get(batch.created_by, '')} {details}".lower()
