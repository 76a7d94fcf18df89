"""The cache page as plain HTTP: rows, order, words, and what its buttons are answered."""

import asyncio
import io
from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup
from rich.console import Console

from loraplex.engine.status import AdapterStatus
from loraplex.web.admin.cache.cache_rows import cache_view
from loraplex.web.admin.figures.known_adapters import Known
from loraplex.web.admin.figures.tiers import tiers
from loraplex.web.cli.serve.banner import print_banner
from loraplex.web.management.registration import add_from_folder
from loraplex.web.state import State

from .fake_engine import FakeEngine
from .test_dashboard_figures import operator
from .test_pages import HTMX, Headers, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]


async def test_htmx_gets_what_moves_alone(person: httpx.AsyncClient) -> None:
    part = await person.get("/cache", headers=HTMX)
    assert "<html" not in part.text
    soup = BeautifulSoup(part.text, "html.parser")
    assert [tag["id"] for tag in soup.find_all(recursive=False)] == ["cache"]
    assert [link.text for link in soup.select("tbody a")] == ["sql"]


async def test_the_kv_cache_says_its_dtype_and_what_bfloat16_would_hold(person: httpx.AsyncClient) -> None:
    soup = BeautifulSoup((await person.get("/cache")).text, "html.parser")
    [card] = soup.select("#kv-cache")
    assert card.get_text(" ", strip=True) == ("KV cache 1,024 tokens in fp8_e4m3 (bfloat16 would hold 512), 1.0 MB")
    system = BeautifulSoup((await person.get("/system")).text, "html.parser").get_text(" ", strip=True)
    assert "KV cache 1,024 tokens in fp8_e4m3 (bfloat16 would hold 512), 1.0 MB" in system


async def test_recurrent_states_are_shown_where_the_model_has_them(
    person: httpx.AsyncClient, engine: FakeEngine
) -> None:
    assert "Recurrent states" not in (await person.get("/cache")).text + (await person.get("/system")).text
    assert engine.info is not None
    engine.info.num_states, engine.info.state_bytes = 40, 3 << 20
    engine.free_states, engine.cached_states = 28, 5
    [card] = BeautifulSoup((await person.get("/cache")).text, "html.parser").select("#recurrent-states")
    assert card.get_text(" ", strip=True) == "Recurrent states 12 of 40 in 3.1 MB, 5 snapshots kept"
    system = BeautifulSoup((await person.get("/system")).text, "html.parser").get_text(" ", strip=True)
    assert "Recurrent states 40 in 3.1 MB" in system
    [states] = [tier for tier in tiers(engine.status, engine.info) if tier["name"] == "Recurrent states"]
    assert states == {"name": "Recurrent states", "share": 0.3, "words": "12 of 40 states, 5 snapshots reusable"}


async def test_the_start_up_box_says_how_many_tokens_fit(client: httpx.AsyncClient, state: State) -> None:
    assert state.engine.info is not None
    for scales in ("", "static scales of the checkpoint"):
        state.engine.info.kv_cache_scales, shown = scales, io.StringIO()
        print_banner(Console(width=200, file=shown), state, first_start=False, seconds=1.0)
        assert "KV cache    1,024 tokens in fp8_e4m3 (bfloat16 would hold 512) on cpu" in shown.getvalue()
        assert "Memory      weights 1.0 MB, adapters 1.0 MB, kv cache 1.0 MB" in shown.getvalue()
        assert ("KV scales   static scales of the checkpoint " in shown.getvalue()) == bool(scales)


async def test_a_long_list_ends_with_a_count(
    person: httpx.AsyncClient,
    state: State,
    adapter_folders: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loraplex.web.admin.cache.cache.MOST_ROWS", 1)
    await asyncio.to_thread(add_from_folder, state.registry, state.base, "json", adapter_folders[1], "cli")
    await state.reconciler.reconcile()
    soup = BeautifulSoup((await person.get("/cache")).text, "html.parser")
    assert len(soup.select("tbody tr")) == 1
    assert "1 more, see all adapters." in " ".join(soup.get_text().split())


async def test_the_buttons_act_on_a_version_too(
    person: httpx.AsyncClient, trusted: Headers, engine: FakeEngine
) -> None:
    for reference in ("sql", "sql@1"):
        for action, resident in (("load", 1), ("evict", 0)):
            answer = await person.post(f"/cache/{reference}/{action}", headers=trusted)
            assert (answer.status_code, answer.headers["location"]) == (303, f"/cache?done={action}")
            assert len(engine.resident) == resident


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/cache/sql/explode", 404, "There is no action"),
        ("/cache/none/load", 404, "There is no adapter"),
        ("/cache/none/pin", 404, "There is no adapter"),
        ("/cache/A B/load", 400, "cannot name an adapter"),
        ("/cache/sql@7/load", 400, "Enable it before you load it"),
        ("/cache/sql/evict", 400, "adapter &#39;sql&#39; is pinned; unpin it first"),
    ],
)
async def test_refusals_are_pages(
    person: httpx.AsyncClient, trusted: Headers, path: str, status: int, words: str
) -> None:
    await person.post("/cache/sql/pin", headers=trusted)
    answer = await person.post(path, headers=trusted)
    assert answer.status_code == status
    assert words in answer.text and "<h1>" in answer.text


async def test_rows_stand_in_the_order_in_which_they_would_stay(
    person: httpx.AsyncClient,
    state: State,
    adapter_folders: list[Path],
    trusted: Headers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Busy ones first, who leaves next last of those in memory; then what loads, what failed, what the host cache has,
    what is on disk."""
    [sql] = state.registry.snapshots.current.of_tenant()
    digests = [f"{place:064x}" for place in range(6)]
    statuses = [
        AdapterStatus(digest=digests[0], state="registered", evictions=2, evicted_for=digests[1]),
        AdapterStatus(digest=digests[1], state="resident", last_used_seconds_ago=50.0, evictions=1),
        AdapterStatus(digest=digests[2], state="resident", last_used_seconds_ago=5.0, running=2, pages=1, bytes=10),
        AdapterStatus(digest=digests[3], state="failed", error="no", evictions=1, evicted_for="f" * 64),
        AdapterStatus(digest=digests[4], state="resident", last_used_seconds_ago=9.0),
        AdapterStatus(digest=digests[5], state="registered", tier="host", host_bytes=10, loads=3, host_loads=2),
    ]
    statuses[5].load_seconds, statuses[5].evictions = 0.0021, 3
    status = state.engine.status
    assert status is not None
    status.adapter_evictions = 11
    status.adapters = [*statuses, AdapterStatus(digest="f" * 64, state="resident", last_used_seconds_ago=999.0)]
    monkeypatch.setattr(FakeEngine, "status", status)
    known = dict.fromkeys(digests, Known(sql, sql.versions[0], "sql", "/adapters/sql"))
    monkeypatch.setattr("loraplex.web.admin.cache.cache_rows.known_adapters", lambda *_: known)
    view = await asyncio.to_thread(cache_view, state, operator(), 100)
    assert view is not None
    assert [row.digest for row in view.rows] == [digests[place] for place in (2, 4, 1, 3, 5, 0)]
    assert [row.leaves_next for row in view.rows] == [False, False, True, False, False, False]
    assert [row.use for row in view.rows] == ["2 running", "idle 9 s", "idle 50 s", "–", "–", "–"]
    assert (view.rows[4].words, view.rows[4].load_time) == ("Ready · in host cache", "2 from host, last 2 ms")
    assert (view.host, view.host_used, view.host_capacity) == (1, "0 B", "1.0 MB")
    assert [row.evicted_for for row in view.rows] == [
        "",
        "",
        "Last eviction: manual",
        "Last eviction: for another adapter",
        "Last eviction: manual",
        "Last eviction: for sql",
    ]
    assert [row.can_load for row in view.rows] == [False, False, False, True, True, True]
    assert (view.resident, view.total, view.evictions, view.next_idle) == (3, 6, 11, "idle 50 s")


async def test_evictions_stay_counted_when_an_adapter_goes(
    person: httpx.AsyncClient, trusted: Headers, state: State, adapter_folders: list[Path]
) -> None:
    async def figure() -> str:
        soup = BeautifulSoup((await person.get("/cache")).text, "html.parser")
        [card] = [card for card in soup.select("#cache .figure") if card.select_one("h2:-soup-contains(Evictions)")]
        return card.select(".value")[0].text

    await asyncio.to_thread(add_from_folder, state.registry, state.base, "json", adapter_folders[1], "cli")
    await state.reconciler.reconcile()
    for action in ("load", "evict"):
        await person.post(f"/cache/sql/{action}", headers=trusted)
    assert await figure() == "1"
    assert (await person.post("/adapters/sql/disable", headers=trusted)).status_code == 303
    assert await figure() == "1"
    found = (await person.get("/metrics")).text
    assert "loraplex_engine_evictions_total 1.0" in found
