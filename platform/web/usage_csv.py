"""Rows of the usage ledger as a file, and their sum."""

from collections.abc import Mapping, Sequence
from typing import Any

from loraplex.registry.ledger import COUNTS
from loraplex.registry.usage import columns_of

from .csv_lines import csv_lines


def total_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of every count."""
    return {name: sum(row[name] for row in rows) for name in COUNTS}


def as_csv(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> str:
    """With a head, even when there is no row."""
    columns = [*columns_of(by), *COUNTS]
    return csv_lines([columns, *([row[name] for name in columns] for row in rows)])
