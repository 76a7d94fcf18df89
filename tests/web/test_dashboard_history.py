"""What the dashboard remembers and concludes: hours of traffic, moves of adapters, what-if, what needs attention."""

import re
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.engine.status import AdapterStatus
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.snapshot import Snapshot
from loraplex.registry.usage.usage import HourOfUse
from loraplex.web.admin.adapters import adapter_rows
from loraplex.web.admin.cache.what_if import Replay, replay, used_digests
from loraplex.web.admin.figures.cache_history import CacheHistory
from loraplex.web.admin.figures.traffic import Traffic
from loraplex.web.admin.overview import system_facts
from loraplex.web.admin.overview.attention import attention
from loraplex.web.observability import hourly_use
from loraplex.web.observability.hourly_use import HOURS, HourlyUse
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state

from .conftest import served
from .fake_engine import FakeEngine
from .test_adapters_api import add, said
from .test_dashboard_figures import finished, operator


def test_hours_count_by_tenant_and_forget_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    now, use = 1_000_000, HourlyUse()
    monkeypatch.setattr(hourly_use, "_now", lambda: now)
    for failed in (False, True):
        use.note("a", "sql", failed, tokens=5)
    use.note("b", "sql", False, tokens=1)
    assert (use.requests("a", "sql"), use.requests("b", "sql"), use.requests("a", "json")) == (2, 1, 0)
    at, hour = use.of("a", "sql")[-1]
    assert (at, hour.requests, hour.errors, hour.tokens) == (now * 3600, 2, 1, 10)
    assert len(use.of("a", "sql")) == HOURS
    now += HOURS
    assert use.requests("a", "sql") == 0
    use.note("a", "sql", False, tokens=1)
    assert [hour.requests for _, hour in use.of("a", "sql")] == [0] * (HOURS - 1) + [1]
    use.note("b", "sql", False, tokens=1)
    use.forget("a", "sql")
    assert (use.requests("a", "sql"), use.requests("b", "sql")) == (0, 1)


class Tomorrow(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Tomorrow":
        return super().now(tz) + timedelta(hours=HOURS)


async def test_traffic_and_last_use_survive_a_restart(
    settings: Settings,
    checkpoint: Path,
    state: State,
    admin: dict[str, str],
    adapter_folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def rows(client: httpx.AsyncClient, **query: str) -> dict[str, list[str]]:
        page = BeautifulSoup((await client.get("/adapters", params=query, headers=admin)).text, "html.parser")
        cells = [[cell.get_text(" ", strip=True) for cell in row.select("td")] for row in page.select("tbody tr")]
        return {row[0].split()[0]: row[5:7] for row in cells}

    async with served(state) as client:
        client.headers.update(admin)
        for name, folder in zip(("json", "sql"), adapter_folders, strict=True):
            assert (await add(client, name, folder)).status_code == 201
        for _ in range(2):
            await said(client, "sql")
        assert (await rows(client))["sql"][1] == "2"
    again = open_state(settings, checkpoint, FakeEngine(Tokenizer(checkpoint)))
    async with served(again) as client:
        found = await rows(client, order="used")
        assert list(found) == ["sql", "json"] and found["json"] == ["not used yet", "–"]
        assert found["sql"] in (["within 1 h", "2"], ["within 2 h", "2"])
        page = (await client.get("/adapters/sql", headers=admin)).text
        assert re.search(r"2 requests[^;<]*; no aliases\.", page)
        monkeypatch.setattr(adapter_rows, "datetime", Tomorrow)
        assert (await rows(client))["json"] == ["not in 24 h", "–"]
        points = (await client.get("/adapters/sql/traffic", headers=admin)).json()["hours"]
        assert (sum(points["requests"]), sum(points["errors"]), sum(points["tokens"]) > 0) == (2, 0, True)


def test_what_was_removed_or_is_old_is_not_restored(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what another adapter did that had the name before."""
    now, use, snapshot = 1_000_000, HourlyUse(), state.registry.snapshots.current
    monkeypatch.setattr(hourly_use, "_now", lambda: now)
    for digest, hour in (("new", now), ("new", now - 23), ("new", now - HOURS), ("old", now)):
        use.restore([HourOfUse("a", "sql", digest, hour * 3600, 3, 1, 7)], with_version(snapshot, "a", "sql", "new"))
    assert use.requests("a", "sql") == 6 and use.hours_since_use("a", "sql") == 0
    assert [hour.requests for _, hour in use.of("a", "sql")] == [3] + [0] * (HOURS - 2) + [3]
    use.note("a", "sql", True, tokens=1)
    _, hour = use.of("a", "sql")[-1]
    assert (hour.requests, hour.errors, hour.tokens) == (4, 2, 8)
    now += 5
    assert (use.hours_since_use("a", "sql"), use.hours_since_use("b", "sql")) == (5, None)
    now += HOURS
    assert use.hours_since_use("a", "sql") is None


def with_version(snapshot: Snapshot, tenant: str, name: str, digest: str) -> Snapshot:
    """The same with one adapter, of which nothing matters but this."""
    version = SimpleNamespace(digest=digest)
    adapter = SimpleNamespace(tenant=tenant, name=name, versions=[version])
    return replace(snapshot, adapters=cast(Any, {tenant: {name: adapter}}))


@pytest.mark.parametrize(
    ("memory", "slots", "pinned", "loads"),
    [
        (30, 9, set(), 3),  # all three fit
        (20, 9, set(), 5),  # b, then a, then c have to leave
        (30, 2, set(), 5),  # as many slots as that
        (20, 9, {"a"}, 3),  # a is there and stays; b and c take turns
        (5, 9, set(), 6),  # nothing fits beside anything
    ],
)
def test_a_replay_loads_what_an_lru_would(memory: int, slots: int, pinned: set[str], loads: int) -> None:
    uses, sizes = ["a", "b", "a", "c", "b", "a"], {"a": 10, "b": 10, "c": 10}
    assert replay(uses, sizes, pinned, memory, slots) == Replay(uses=6, loads=loads)


def test_uses_are_replayed_in_the_order_in_which_requests_began() -> None:
    slow = finished(10.0, duration=9.0, digests=("a", "b"))
    quick = finished(5.0, duration=1.0, digests=("c",))
    assert used_digests([quick, slow, finished(6.0)]) == ["a", "b", "c"]


def test_moves_are_told_from_the_engines_counters(
    client: httpx.AsyncClient, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = CacheHistory()

    def tick(**fields: Any) -> None:
        status = engine.status
        assert status is not None
        status.adapters = [AdapterStatus(**{"digest": "d", "state": "registered", **fields})]
        history.tick(status)

    tick(loads=1, evictions=1)
    tick(loads=2, evictions=1, state="resident", load_seconds=0.5)
    tick(loads=3, evictions=2, state="resident", host_loads=1)
    tick(loads=3, evictions=3, evicted_for="w")
    tick(loads=0, evictions=0)
    history.tick(None)
    told = [(move.loaded, move.from_host, move.winner) for move in reversed(history.moves_of({"d"}))]
    assert told == [(True, False, None), (False, False, None), (True, True, None), (False, False, "w")]
    assert (history.evictions(60), history.moves_of({"e"})) == (2, [])
    points = history.points()
    assert (sum(points["loads"]), sum(points["evictions"])) == (2, 2)  # type: ignore[arg-type]
    assert points["blocks_used"][-1] is None
    assert points["hit_rate"][-1] is None


def test_a_load_within_the_second_of_its_registration_is_told(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    history = CacheHistory()
    for adapters in ([], [AdapterStatus(digest="d", state="resident", loads=1, load_seconds=0.5)]):
        status = engine.status
        assert status is not None
        status.adapters = adapters
        history.tick(status)
    assert [(move.loaded, move.seconds) for move in history.moves_of({"d"})] == [(True, 0.5)]


async def test_attention_is_empty_while_all_is_well(client: httpx.AsyncClient, state: State) -> None:
    assert attention(state, Traffic(), CacheHistory(), operator()) == []


async def test_attention_names_what_is_wrong_the_worst_first(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = Traffic()
    traffic.tick([finished(2.0, status="error"), finished(1.0)], 0)
    engine.restarts = 1
    monkeypatch.setattr(system_facts, "free_disk", lambda state: 1)
    monkeypatch.setattr("loraplex.web.admin.overview.attention.free_disk", lambda state: 10)
    state.settings = state.settings.model_copy(update={"min_free_bytes": 100})
    status = engine.status
    assert status is not None
    status.integrity_errors, status.waiting, status.block_map = 1, 3, bytes([2]) * 64
    monkeypatch.setattr(FakeEngine, "status", status)
    items = attention(state, traffic, CacheHistory(), operator())
    assert [item["tone"] for item in items] == ["bad"] * 3 + ["warn"] * 2
    words = " ".join(item["text"] for item in items)
    for part in (
        "restarted 1 time",
        "10 B left",
        "1 of 2 requests failed",
        "memory accounting",
        "waiting for blocks: 3",
    ):
        assert part in words
