"""Who asked an adapter in the last day: found by the hour, and without a look at other adapters' rows."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, insert, select

from loraplex.registry.database.tables import Tenant, UsageRow, utc_now
from loraplex.registry.registry import Registry
from loraplex.registry.usage.usage import CallerUse

NOTHING = dict.fromkeys(
    ("errors", "unknown", "prompt_tokens", "cached_tokens", "completion_tokens", "unknown_tokens"), 0
)


def book(registry: Registry, at: datetime, actor: str, requests: int, adapter: str = "sql") -> None:
    with registry.database.write() as session:
        tenant = session.scalars(select(Tenant.id).where(Tenant.name == "default")).one()
        place = {"tenant_id": tenant, "day": at.date().isoformat(), "hour": at.hour, "actor": actor}
        row = {"adapter_digest": "d", "adapter_name": adapter, "requests": requests, **NOTHING}
        session.execute(insert(UsageRow), [place | row])


def test_the_last_24_hours_count_and_no_others(registry: Registry) -> None:
    now = utc_now()
    book(registry, now, "key:a", 2)
    book(registry, now - timedelta(hours=23), "key:b", 5)
    book(registry, now - timedelta(hours=23), "key:a", 1)
    book(registry, now - timedelta(hours=24), "key:old", 9)
    book(registry, now - timedelta(days=2), "key:old", 9)
    book(registry, now, "key:a", 9, "other")
    assert registry.usage.last_day("default", "sql") == [CallerUse("key:b", "d", 5), CallerUse("key:a", "d", 3)]


def test_sqlite_reads_the_rows_of_this_adapter_alone(registry: Registry) -> None:
    """An index by day alone took ten times as long at 300,000 rows."""
    statements = list[tuple[str, object]]()
    with registry.database.read() as session:
        engine = session.get_bind().engine
        if engine.dialect.name != "sqlite":
            pytest.skip("SQLite alone")
    event.listen(
        engine, "before_cursor_execute", lambda c, k, statement, given, x, m: statements.append((statement, given))
    )
    registry.usage.last_day("default", "sql")
    statement, given = next(one for one in statements if "sum" in one[0])
    with registry.database.read() as session:
        plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", given).all()  # type: ignore[arg-type]
    assert "USING INDEX ix_usage_adapter" in str(plan)
