"""The usage ledger's reading side: what was used by whom, with what, when."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, Select, and_, func, not_, select

from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, Adapter, AdapterVersion, Tenant, UsageDay, UsageRow, utc_now
from ..errors import InvalidQuery
from .ledger import COUNTS, DAY_KEY, KEY
from .sums import UsageCounts, UsageSum, total_of

DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
GROUPS: Final = {
    "day": ("day",),
    "hour": ("day", "hour"),
    "key": ("actor",),
    "adapter": ("adapter_name", "adapter_digest"),
}
"""What usage may be summed up by -> the columns that are then told apart."""
TOTAL: Final = "total_"
SHADOW: Final = "shadow"
"""Actor of copies for shadow versions: booked, and on nobody's quota."""


@dataclass(frozen=True, slots=True)
class HourOfUse:
    """What one adapter version did for a tenant in the hour that begins at `begin`, in Unix seconds."""

    tenant: str
    adapter: str
    digest: str
    begin: int
    requests: int
    errors: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class CallerUse:
    """What one caller asked one adapter version, by its digest. `actor`: `key:<prefix>` or `user:<name>`."""

    actor: str
    digest: str
    requests: int


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


@dataclass(frozen=True, slots=True)
class UsageTable:
    """The first rows of `sums`, whether they are all, and what all of them come to."""

    rows: Sequence[UsageSum]
    whole: bool
    total: UsageCounts


class Usage:
    def __init__(self, database: Database) -> None:
        self._database = database

    def sums(self, query: UsageQuery, most: int | None = None, largest_first: bool = False) -> Sequence[UsageSum]:
        """The columns of `by` and the counts of the ledger, newest day first, or those with most tokens; at most `most`
        rows."""
        statement, _ = _sums(query, most, largest_first)
        with self._database.read() as session:
            return [UsageSum(**row) for row in _counted(session.execute(statement).mappings())]

    def table(self, query: UsageQuery, most: int, largest_first: bool = False) -> UsageTable:
        """At most `most` rows of `sums`, and the sum of all."""
        statement, each_its_own = _sums(query, most + 1, largest_first)
        if not each_its_own:
            # Over the groups, so that the days are read once.
            totals = (func.sum(func.sum(getattr(_table(query), name))).over().label(TOTAL + name) for name in COUNTS)
            statement = statement.add_columns(*totals)
        with self._database.read() as session:
            rows = _counted(session.execute(statement).mappings())
        whole, total = len(rows) <= most, None if each_its_own else _total_in(rows)
        found = [UsageSum(**{name: row[name] for name in row if not name.startswith(TOTAL)}) for row in rows]
        if total is None:
            total = total_of(found) if whole else total_of(self.sums(replace(query, by=())))
        return UsageTable(found[:most], whole, total)

    def days(self, query: UsageQuery) -> Sequence[str]:
        """Those on which something was used, newest first."""
        statement = select(UsageDay.day).where(*_conditions(query, UsageDay)).distinct()
        with self._database.read() as session:
            return session.scalars(statement.order_by(UsageDay.day.desc())).all()

    def versions(self, query: UsageQuery) -> Mapping[tuple[str, str], int]:
        """(adapter name, digest) -> version number, of removed ones too; the newest where two have the same bytes."""
        place = (Adapter.name, AdapterVersion.digest, AdapterVersion.number)
        statement = select(*place).join(Adapter, Adapter.id == AdapterVersion.adapter_id)
        wanted = statement.join(Tenant, Tenant.id == Adapter.tenant_id).where(Tenant.name == query.tenant)
        if query.adapter:
            wanted = wanted.where(Adapter.name == query.adapter)
        with self._database.read() as session:
            rows = session.execute(wanted.order_by(AdapterVersion.number)).all()
            return {(name, digest): number for name, digest, number in rows}

    def hours_since(self, first: str, without: str) -> Sequence[HourOfUse]:
        """Of all tenants, from the day `first` on, but for what the actor `without` used."""
        place = (Tenant.name, UsageRow.adapter_name, UsageRow.adapter_digest, UsageRow.day, UsageRow.hour)
        requests, errors = func.sum(UsageRow.requests), func.sum(UsageRow.errors)
        query = select(*place, requests, errors, func.sum(UsageRow.completion_tokens))
        wanted = query.where(UsageRow.day >= first, UsageRow.actor != without).group_by(*place)
        with self._database.read() as session:
            rows = session.execute(wanted.join(Tenant, Tenant.id == UsageRow.tenant_id)).all()
        return [
            HourOfUse(row[0], row[1], row[2], _begin(row[3], row[4]), int(row[5]), int(row[6]), int(row[7]))
            for row in rows
        ]

    def last_day(self, tenant: str, adapter: str) -> Sequence[CallerUse]:
        """Who asked one adapter in the last 24 hours, this one included, most requests first; shadows' copies too."""
        first, requests = utc_now() - timedelta(hours=23), func.sum(UsageRow.requests)
        # No `or`: SQLite would look the days up in an index of their own, and read all adapters' rows of them.
        recent = UsageRow.day >= _iso(first), not_(and_(UsageRow.day == _iso(first), UsageRow.hour < first.hour))
        place = (UsageRow.actor, UsageRow.adapter_digest)
        query = select(*place, requests).where(*_conditions(UsageQuery(tenant, adapter=adapter), UsageRow), *recent)
        with self._database.read() as session:
            rows = session.execute(query.group_by(*place).order_by(requests.desc(), *place)).all()
        return [CallerUse(actor, digest, int(count)) for actor, digest, count in rows]

    def tokens_of_day(self, day: str) -> Mapping[tuple[str, str], int]:
        """(tenant, actor) -> tokens that count against daily quotas, those reserved for unknown requests included."""
        tokens = func.sum(UsageDay.prompt_tokens + UsageDay.completion_tokens + UsageDay.unknown_tokens)
        query = select(Tenant.name, UsageDay.actor, tokens).join(Tenant, Tenant.id == UsageDay.tenant_id)
        with self._database.read() as session:
            rows = session.execute(query.where(UsageDay.day == day).group_by(Tenant.name, UsageDay.actor)).all()
            return {(tenant, actor): int(used) for tenant, actor, used in rows}


def _table(query: UsageQuery) -> type[UsageRow | UsageDay]:
    return UsageRow if "hour" in query.by else UsageDay


def _sums(query: UsageQuery, most: int | None, largest_first: bool) -> tuple[Select[Any], bool]:
    """The statement, and whether each row of the ledger is a sum of its own."""
    table = _table(query)
    columns = [getattr(table, name) for name in columns_of(query.by)]
    tokens = table.prompt_tokens + table.completion_tokens + table.unknown_tokens
    statement = select(*columns).where(*_conditions(query, table))
    # Grouping a month of such rows takes longer than all else.
    each_its_own = set(DAY_KEY if table is UsageDay else KEY) == {"tenant_id", *columns_of(query.by)}
    if each_its_own:
        statement = statement.add_columns(*(getattr(table, name) for name in COUNTS))
    else:
        counts = (func.coalesce(func.sum(getattr(table, name)), 0).label(name) for name in COUNTS)
        statement, tokens = statement.add_columns(*counts).group_by(*columns), func.sum(tokens)
    order = [column.desc() if column.key in ("day", "hour") else column for column in columns]
    if largest_first:
        order.insert(0, tokens.desc())
    return statement.order_by(*order).limit(most), each_its_own


def _total_in(rows: Sequence[Mapping[str, Any]]) -> UsageCounts:
    """Each row has it."""
    return UsageCounts(**{name: rows[0][TOTAL + name] for name in COUNTS}) if rows else UsageCounts()


def _counted(rows: Iterable[RowMapping]) -> Sequence[dict[str, Any]]:
    """PostgreSQL adds integers up to decimals."""
    return [{name: int(value) if isinstance(value, Decimal) else value for name, value in row.items()} for row in rows]


def usage_query(tenant: str, first: str, last: str, key: str, user: str, adapter: str, by: str) -> UsageQuery:
    """From words as people give them; `by` has commas. Raises InvalidQuery."""
    if key and user:
        raise InvalidQuery("Give a key or a user, not both.", "user")
    actor = f"key:{key}" if key else f"user:{user}" if user else ""
    groups = tuple(name for name in by.split(",") if name)
    if not set(groups) <= set(GROUPS):
        raise InvalidQuery(f"by must be a comma-separated list of {', '.join(GROUPS)}; got {by[:80]!a}.", "by")
    return UsageQuery(tenant, _day(first, "from"), _day(last, "to"), _text(actor), _text(adapter), groups)


def _day(text: str, field: str) -> str:
    with suppress(ValueError):
        if not text or (DAY.fullmatch(text) and date.fromisoformat(text)):
            return text
    raise InvalidQuery(f"{field} must be a day such as 2026-11-22; got {text[:40]!a}.", field)


def _text(text: str) -> str:
    """PostgreSQL takes no text with a zero byte in it; no name has one."""
    return text if text.isprintable() else "?"


def _iso(moment: datetime) -> str:
    return moment.date().isoformat()


def _begin(day: str, hour: int) -> int:
    return int(datetime.combine(date.fromisoformat(day), time(hour), UTC).timestamp())


def columns_of(by: Iterable[str]) -> list[str]:
    """Names of the columns that are told apart, each once."""
    return list(dict.fromkeys(column for name in by for column in GROUPS[name]))


def _conditions(query: UsageQuery, table: type[UsageRow | UsageDay]) -> list[ColumnElement[bool]]:
    tenant = select(Tenant.id).where(Tenant.name == query.tenant).scalar_subquery()
    asked = (
        (query.first, table.day >= query.first),
        (query.last, table.day <= query.last),
        (query.actor, table.actor == query.actor),
        (query.adapter, table.adapter_name == query.adapter),
    )
    return [table.tenant_id == tenant, *(condition for value, condition in asked if value)]
