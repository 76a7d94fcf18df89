"""Rows of the usage ledger as a file."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from loraplex.registry.usage.ledger import COUNTS
from loraplex.registry.usage.sums import UsageSum
from loraplex.registry.usage.usage import Usage, UsageQuery, columns_of

from ..audit.csv_lines import csv_lines

NAME: Final = "adapter_name"
VERSION: Final = "adapter_version"
Rows = Sequence[UsageSum]
Versions = Mapping[tuple[str, str], int]
"""By adapter name and digest."""


def versions_for(usage: Usage, query: UsageQuery) -> Versions:
    """What `with_versions` needs; empty where adapters are not told apart. Blocks."""
    return usage.versions(query) if "adapter" in query.by else {}


def with_versions(rows: Rows, query: UsageQuery, versions: Versions) -> Rows:
    """Rows that tell adapters apart say which version each is of."""
    if "adapter" not in query.by:
        return rows
    return [
        msgspec.structs.replace(row, adapter_version=versions.get((str(row.adapter_name), str(row.adapter_digest))))
        for row in rows
    ]


def csv_head(query: UsageQuery) -> str:
    return csv_lines([["tenant", "from", "to", *_columns(query.by)]])


def csv_rows(rows: Rows, query: UsageQuery) -> str:
    """Of `with_versions`, each with the tenant and the days that were asked for, so that a file says what it is of."""
    of = (query.tenant, query.first, query.last)
    return csv_lines([*of, *(getattr(row, name) for name in _columns(query.by))] for row in rows)


def _columns(by: Sequence[str]) -> list[str]:
    found = [*columns_of(by), *COUNTS]
    if NAME in found:
        found.insert(found.index(NAME) + 1, VERSION)
    return found
