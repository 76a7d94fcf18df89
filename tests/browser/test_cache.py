"""The cache page: what is in memory, who leaves next, and what changes while one looks."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from loraplex.web.admin.overview.live import LIVE_SECONDS
from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine
from tests.web.test_adapters_api import add

from .conftest import Hold, Watch, listening
from .drawings import ink, table_of
from .test_overview import generate

LOOKS = "all => all.map(one => [one.tagName, one.className, one.title, one.href, one.dataset.busy, one.innerHTML])"

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def digests_of(http: httpx.AsyncClient, folders: list[Path], *names: str) -> list[str]:
    """Add one adapter for each name; what the engine calls them."""
    added = [(await add(http, name, folder)).json() for name, folder in zip(names, folders, strict=True)]
    return [one["version"]["digest"] for one in added]


def row(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


async def test_who_is_in_memory_and_who_leaves_next(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    sql, json = await digests_of(http, adapter_folders, "sql-v2", "json")
    await page.goto("/cache")
    next_out = page.locator("#next-out")
    await expect(next_out).to_have_text("Adapters load on their first request")
    await expect(row(page, "sql-v2")).to_contain_text("Ready · on disk")
    for name in ("sql-v2", "json"):
        await http.post(f"/api/v1/adapters/{name}/load")
    engine.idle = {sql: 840.0, json: 3.0}
    await expect(next_out).to_have_text("Next to be evicted: sql-v2, idle 14 min")
    await expect(row(page, "sql-v2")).to_contain_text("evicted next")
    await expect(row(page, "sql-v2")).to_contain_text("1.0 kB2 pages")
    await expect(row(page, "json")).to_contain_text("idle 3 s")
    await expect(page.locator("#cache").get_by_text("2.0 kB of 1.0 MB")).to_be_visible()
    await http.post("/api/v1/adapters/sql-v2/evict")
    engine.evicted_for = {sql: json}
    engine.kept = {sql}
    await expect(row(page, "sql-v2")).to_contain_text("1Last eviction: for json")
    await expect(row(page, "sql-v2")).to_contain_text("Ready · in host cache")
    await expect(page.get_by_text("of 1.0 MB, 1 kept")).to_be_visible()
    await expect(next_out).to_have_text("Next to be evicted: json, idle 3 s")


async def test_requests_are_seen_while_they_run(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await digests_of(http, adapter_folders, "sql", "json")
    await http.post("/api/v1/adapters/sql/load")
    await page.goto("/cache")
    engine.delay = 0.5  # longer than anybody looks
    running = asyncio.create_task(generate(http, "sql", 100))
    await expect(row(page, "sql")).to_contain_text("1 running")
    await expect(page.locator("#next-out")).to_have_text(
        "Nothing can be evicted: all adapters in memory are pinned or in use"
    )
    engine.delay = 0.0
    await running
    await expect(row(page, "sql")).not_to_contain_text("running")


async def test_the_buttons_do_what_they_say(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path], state: State
) -> None:
    sql, _ = await digests_of(http, adapter_folders, "sql", "json")
    await page.goto("/cache")
    mine = row(page, "sql")
    for button, words, resident in (
        ("Load", "Loaded into memory.", True),
        ("Evict", "Evicted from memory.", False),
        ("Pin", "Pinned. It stays in memory.", True),
        ("Unpin", "Unpinned.", True),
    ):
        # Curves are drawn with the first live state.
        await expect(page.locator("#live")).to_have_text("live")
        await mine.get_by_role("button", name=button, exact=True).click()
        await expect(page.get_by_role("status").get_by_text(words)).to_be_visible()
        assert (sql in engine.resident) == resident
    await mine.get_by_role("button", name="Pin", exact=True).click()
    await expect(mine.get_by_text("pinned", exact=True)).to_be_visible()
    await expect(mine.get_by_role("button", name="Evict")).to_have_count(0)
    [first, _] = await asyncio.to_thread(state.registry.adapters.list)
    assert [entry.action for entry in await asyncio.to_thread(state.registry.audit.entries, 3)] == [
        "adapter.pin",
        "adapter.unpin",
        "adapter.pin",
    ]
    assert first.name == "json" and not first.pinned


async def test_a_button_stays_under_the_finger_while_the_page_moves(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    sql, json = await digests_of(http, adapter_folders, "sql", "json")
    await page.goto("/cache")
    button = row(page, "sql").get_by_role("button", name="Pin")
    await button.focus()
    engine.idle = {json: 60.0}
    await http.post("/api/v1/adapters/json/load")
    await expect(row(page, "json")).to_contain_text("idle 60 s")
    await expect(button).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Pinned. It stays in memory.")).to_be_visible()
    assert engine.registered[sql].pinned


@pytest.mark.parametrize("path", ["/", "/cache"])
async def test_what_is_in_memory_has_its_room_before_the_first_live_state(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], hold: Hold, watch: Watch, path: str
) -> None:
    """In a narrow window the tiles stand one upon another."""
    await digests_of(http, adapter_folders, "sql", "json")
    for name in ("sql", "json"):
        await http.post(f"/api/v1/adapters/{name}/load")
    watch.expected.append("net::ERR_FAILED")  # of the live state that is held
    await page.route("**/dashboard/live", hold)
    silent, live = page, await page.context.new_page()
    seen = []
    for one in (silent, live):
        await one.set_viewport_size({"width": 400, "height": 800})
        await one.goto(path)
        card, tiles = one.locator('[aria-labelledby="resident-heading"]'), one.locator("#adapter-tiles > *")
        if one is live:
            await expect(tiles.first).to_have_attribute("style", re.compile("border-left-color"))
        height = await card.evaluate("card => card.getBoundingClientRect().height")
        seen.append((height, await card.inner_text(), await tiles.evaluate_all(LOOKS)))
    assert seen[0] == seen[1]
    assert len(seen[0][2]) == 2


async def test_a_larger_memory_is_tried_on_the_recorded_traffic(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    """Two adapters take turns where one of them fits: in twice the memory only the first use of each is a load."""
    await digests_of(http, adapter_folders, "sql", "json")
    assert engine.info is not None
    engine.info.adapter_memory = 1000
    await page.goto("/cache")
    what_if = page.locator("#what-if")
    await expect(what_if).to_contain_text("No adapter requests have finished yet.")
    for model in ("sql", "json", "sql", "tiny", "json", "sql"):
        await generate(http, model, 2)
    await page.reload()
    await expect(what_if).to_contain_text("5 uses replayed")
    rows = what_if.locator("tbody tr")
    for place, cells in enumerate(
        (
            ["0.5×", "500 B", "0.0 %", "", "5 loads"],
            ["current", "1.0 kB", "0.0 %", "", "5 loads"],
            ["2×", "2.0 kB", "60.0 %", "", "2 loads"],
            ["4×", "4.0 kB", "60.0 %", "", "2 loads"],
        )
    ):
        await expect(rows.nth(place).locator("td")).to_have_text(cells)
        await expect(rows.nth(place).locator("rect")).to_have_attribute("width", cells[2].replace(" ", ""))
    await expect(rows).to_have_count(4)
    await expect(what_if.locator(".chosen-row")).to_contain_text("current")


async def test_loads_and_evictions_are_drawn_and_told_in_a_table(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await digests_of(http, adapter_folders, "sql", "json")
    await page.goto("/cache")
    await listening(page)
    chart = "moves-chart"
    assert (await ink(page, chart, "--accent"), await ink(page, chart, "--warn")) == (0, 0)
    rows = await table_of(page, chart)
    await expect(rows).to_have_count(60)
    await asyncio.sleep(1.5 * LIVE_SECONDS)  # the watch runs in this very loop: it has seen both before they move
    for verb in ("load", "evict"):
        assert (await http.post(f"/api/v1/adapters/sql/{verb}")).status_code == 200
    await sums_are(rows, [1, 1])
    assert await ink(page, chart, "--accent") > 0, "the bar of the eviction hides that of the load"
    assert await ink(page, chart, "--warn") > 0
    assert (await http.post("/api/v1/adapters/json/load")).status_code == 200
    await sums_are(rows, [2, 1])
    assert await page.locator(f"#{chart}-values thead th").all_inner_texts() == ["Time", "Loads", "Evictions"]


async def sums_are(rows: Locator, wanted: list[int]) -> None:
    """Wait until the table's two columns of counts add up to these."""
    sums = "rows => [1, 2].map(at => rows.reduce((sum, row) => sum + Number(row.cells[at].textContent), 0))"
    async with asyncio.timeout(60):
        while await rows.evaluate_all(sums) != wanted:
            await asyncio.sleep(0.05)


async def test_older_versions_have_rows_of_their_own(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    first, _ = await digests_of(http, adapter_folders, "sql", "sql")
    await page.goto("/cache")
    await row(page, "sql@1").get_by_role("button", name="Pin").click()
    await expect(row(page, "sql@1").get_by_text("pinned", exact=True)).to_be_visible()
    assert engine.registered[first].pinned
    await row(page, "sql@1").get_by_role("button", name="Unpin").click()
    await expect(row(page, "sql@1").get_by_role("button", name="Pin", exact=True)).to_be_visible()
    assert not engine.registered[first].pinned


async def test_without_adapters_and_without_an_engine(page: Page, engine: FakeEngine) -> None:
    await page.goto("/cache")
    await expect(page.get_by_role("heading", name="No adapters registered")).to_be_visible()
    await expect(page.get_by_text("No adapters registered").filter(visible=True)).to_have_count(1)
    engine.crash()
    await expect(page.locator("#cache").get_by_text("Waiting for the engine.")).to_be_visible()
    await engine.start()
    await expect(page.get_by_role("link", name="Upload adapter")).to_be_visible()
