"""Rows of the usage ledger as a file, and their sum."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from loraplex.registry.usage.ledger import COUNTS
from loraplex.registry.usage.usage import Usage, UsageQuery, columns_of

from ..audit.csv_lines import csv_lines

NAME: Final = "adapter_name"
VERSION: Final = "adapter_version"
Rows = Sequence[Mapping[str, Any]]
Versions = Mapping[tuple[str, str], int]
"""By adapter name and digest."""


def total_of(rows: Rows) -> dict[str, int]:
    """Of every count."""
    return {name: sum(row[name] for row in rows) for name in COUNTS}


def versions_for(usage: Usage, query: UsageQuery) -> Versions:
    """What `with_versions` needs; empty where adapters are not told apart. Blocks."""
    return usage.versions(query) if "adapter" in query.by else {}


def with_versions(rows: Rows, versions: Versions) -> list[dict[str, Any]]:
    """Rows that tell adapters apart say which version each is of; None: the base, or a sum of adapters."""
    return [dict(_with_version(row, versions)) for row in rows]


def csv_head(query: UsageQuery) -> str:
    return csv_lines([["tenant", "from", "to", *_columns(query.by)]])


def csv_rows(rows: Rows, query: UsageQuery) -> str:
    """Of `with_versions`, each with the tenant and the days that were asked for, so that a file says what it is of."""
    of = (query.tenant, query.first, query.last)
    return csv_lines([*of, *(row[name] for name in _columns(query.by))] for row in rows)


def _columns(by: Sequence[str]) -> list[str]:
    found = [*columns_of(by), *COUNTS]
    if NAME in found:
        found.insert(found.index(NAME) + 1, VERSION)
    return found


def _with_version(row: Mapping[str, Any], versions: Versions) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        yield name, value
        if name == NAME:
            yield VERSION, versions.get((value, row["adapter_digest"]))
