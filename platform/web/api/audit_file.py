"""Rows of the audit log as a file's text."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal

from ..audit.csv_lines import csv_lines
from . import answers
from .answers import entry_json

if TYPE_CHECKING:
    from loraplex.registry.audit import AuditEntry, AuditFilter, AuditLog

BATCH: Final = 1000
FIRST_BATCH: Final = 100
"""Smaller, so that the file begins to come at once."""
Format = Literal["csv", "jsonl"]


def parts_of(audit: "AuditLog", wanted: "AuditFilter", format: Format) -> Iterator[str]:
    """The file's text, a batch of rows at a time, so that any log fits into memory. Blocks."""
    if format == "csv":
        yield ",".join(answers.AuditEntry.__struct_fields__) + "\r\n"
    write = _as_csv if format == "csv" else _as_json_lines
    before, limit = None, FIRST_BATCH
    while rows := audit.search(wanted, limit, before):
        yield write(rows)
        before, limit = rows[-1].id, BATCH


def _as_csv(entries: Sequence["AuditEntry"]) -> str:
    rows = [entry_json(entry) for entry in entries]
    return csv_lines([_csv_cell(row[name]) for name in answers.AuditEntry.__struct_fields__] for row in rows)


def _as_json_lines(entries: Sequence["AuditEntry"]) -> str:
    return "".join(json.dumps(entry_json(entry), ensure_ascii=False) + "\n" for entry in entries)


def _csv_cell(value: object) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value
