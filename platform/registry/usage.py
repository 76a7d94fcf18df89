"""The usage ledger's reading side: what was used by whom, with what, when."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from sqlalchemy import ColumnElement, func, select

from .database import Database
from .errors import InvalidQuery
from .ledger import COUNTS
from .tables import DEFAULT_TENANT, Tenant, UsageRow

DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
GROUPS: Final = {
    "day": (UsageRow.day,),
    "hour": (UsageRow.day, UsageRow.hour),
    "key": (UsageRow.actor,),
    "adapter": (UsageRow.adapter_name, UsageRow.adapter_digest),
}
"""What usage may be summed up by -> the columns that are then told apart."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """`first` and `last`: days in UTC, as 2026-11-22, both included. `actor`: `key:<prefix>` or `user:<name>`.
    `adapter`: a name. Empty: all. `by`: names of GROUPS."""

    tenant: str = DEFAULT_TENANT
    first: str = ""
    last: str = ""
    actor: str = ""
    adapter: str = ""
    by: tuple[str, ...] = ("day", "key", "adapter")


class Usage:
    def __init__(self, database: Database) -> None:
        self._database = database

    def sums(self, query: UsageQuery, most: int | None = None) -> Sequence[Mapping[str, Any]]:
        """The columns of `by` and the counts of the ledger, newest day first; at most `most` rows."""
        columns = list(dict.fromkeys(column for name in query.by for column in GROUPS[name]))
        counts = [func.coalesce(func.sum(getattr(UsageRow, name)), 0).label(name) for name in COUNTS]
        of_tenant = select(*columns, *counts).join(Tenant, Tenant.id == UsageRow.tenant_id)
        statement = of_tenant.where(*_conditions(query)).group_by(*columns)
        order = [column.desc() if column.key in ("day", "hour") else column for column in columns]
        with self._database.read() as session:
            rows = session.execute(statement.order_by(*order).limit(most)).mappings()
            # PostgreSQL adds integers up to decimals.
            return [{name: int(row[name]) if name in COUNTS else row[name] for name in row} for row in rows]

    def tokens_of_day(self, day: str) -> Mapping[tuple[str, str], int]:
        """(tenant, actor) -> tokens that count against daily quotas, those reserved for unknown requests included."""
        tokens = func.sum(UsageRow.prompt_tokens + UsageRow.completion_tokens + UsageRow.unknown_tokens)
        query = select(Tenant.name, UsageRow.actor, tokens).join(Tenant, Tenant.id == UsageRow.tenant_id)
        with self._database.read() as session:
            rows = session.execute(query.where(UsageRow.day == day).group_by(Tenant.name, UsageRow.actor)).all()
            return {(tenant, actor): int(used) for tenant, actor, used in rows}


def usage_query(tenant: str, first: str, last: str, key: str, user: str, adapter: str, by: str) -> UsageQuery:
    """From words as people give them; `by` has commas. Raises InvalidQuery."""
    if key and user:
        raise InvalidQuery("user", "Ask for a key or a user, not for both.")
    actor = f"key:{key}" if key else f"user:{user}" if user else ""
    groups = tuple(name for name in by.split(",") if name)
    if not set(groups) <= set(GROUPS):
        raise InvalidQuery("by", f"by names some of {', '.join(GROUPS)}, with commas between; got {by[:80]!a}.")
    return UsageQuery(tenant, _day(first, "from"), _day(last, "to"), _text(actor), _text(adapter), groups)


def _day(text: str, field: str) -> str:
    with suppress(ValueError):
        if not text or (DAY.fullmatch(text) and date.fromisoformat(text)):
            return text
    raise InvalidQuery(field, f"{field} must be a day such as 2026-11-22; got {text[:40]!a}.")


def _text(text: str) -> str:
    """PostgreSQL takes no text with a zero byte in it; no name has one."""
    return text if text.isprintable() else "?"


def _conditions(query: UsageQuery) -> list[ColumnElement[bool]]:
    asked = (
        (query.first, UsageRow.day >= query.first),
        (query.last, UsageRow.day <= query.last),
        (query.actor, UsageRow.actor == query.actor),
        (query.adapter, UsageRow.adapter_name == query.adapter),
    )
    return [Tenant.name == query.tenant, *(condition for value, condition in asked if value)]
