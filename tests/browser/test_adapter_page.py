"""One adapter's page: what differs between versions, the way back to an older one, and its two charts."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
import pytest
from playwright.async_api import Page, expect

from loraplex.registry.files.artifacts import CONFIG_FILE
from loraplex.web.admin.overview.live import Live
from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine, sentence_of
from tests.web.test_adapters_api import add, said, say

from .conftest import NewContext, confirmed
from .drawings import ink, is_drawn, point_at, table_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ZONE = ZoneInfo("Asia/Kolkata")


async def test_an_older_version_is_compared_and_brought_back(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], tmp_path: Path
) -> None:
    other = Path(shutil.copytree(adapter_folders[1], tmp_path / "other"))
    config = json.loads((other / CONFIG_FILE).read_text())
    (other / CONFIG_FILE).write_text(json.dumps(config | {"lora_alpha": config["lora_alpha"] + 3}))
    first, second = [(await add(http, "sql", one)).json()["version"]["digest"] for one in (adapter_folders[0], other)]
    await page.goto("/adapters/sql")
    rows = page.locator("#versions tbody tr")
    await expect(rows.locator("td:first-child")).to_have_text(["2 current", "1"])
    assert await said(http, "sql") == sentence_of(second)

    await rows.nth(1).get_by_role("button", name="Diff").click()
    diff = page.locator("#diff")
    await expect(diff.get_by_role("heading")).to_have_text("Changes from version 1 to version 2")
    changed = diff.locator("tbody tr")
    alpha = config["lora_alpha"]
    await expect(changed.locator("td")).to_have_text(["lora_alpha", f"{alpha}", f"{alpha + 3}"])
    await expect(diff).to_contain_text("with the same shape and different values.")

    await confirmed(page, rows.nth(1).get_by_role("button", name="Roll back"))
    await expect(page.get_by_role("heading", name="Version 1", exact=True)).to_be_visible()
    await expect(rows.locator("td:first-child")).to_have_text(["2", "1 current"])
    assert await said(http, "sql") == sentence_of(first)
    await confirmed(page, rows.nth(0).get_by_role("button", name="Make current"))
    await expect(rows.locator("td:first-child")).to_have_text(["2 current", "1"])
    assert await said(http, "sql") == sentence_of(second)


async def test_what_is_observed_follows_the_engine_without_a_reload(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table says what the state beside the name says."""
    with monkeypatch.context() as patch:
        # Who looks during the upload sees its effect check load the adapter.
        patch.setattr(Live, "note", lambda live: None)
        await add(http, "sql", adapter_folders[0])
    await page.goto("/adapters/sql")
    memory = page.locator("#states tr", has_text="Memory")
    await expect(memory).to_contain_text("on disk")
    await expect(page.locator("#moves")).to_contain_text("No loads or evictions yet.")
    await page.evaluate("window.kept = true")
    assert (await http.post("/api/v1/adapters/sql/load")).status_code == 200
    await expect(memory).to_contain_text("in memory")
    await expect(page.locator("#moves tbody tr td:nth-child(2)")).to_have_text(["Loaded"])
    assert (await http.post("/api/v1/adapters/sql/evict")).status_code == 200
    await expect(memory).to_contain_text("on disk")
    await expect(page.locator("#moves tbody tr td:nth-child(2)")).to_have_text(["Evicted", "Loaded"])
    assert (await http.patch("/api/v1/adapters/sql", json={"enabled": False})).status_code == 200
    await expect(memory).to_have_count(0)
    assert await page.evaluate("window.kept")


async def test_no_button_of_a_version_is_cut_off(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    for folder in adapter_folders:
        await add(http, "sql", folder)
    await page.goto("/adapters/sql")
    await expect(page.get_by_role("button", name="Roll back")).to_be_visible()
    for width in (400, 700, 962, 1120, 1280):
        await page.set_viewport_size({"width": width, "height": 800})
        beyond = await page.locator("#versions").evaluate("table => table.scrollWidth - table.clientWidth")
        assert beyond == 0, width


async def test_traffic_and_latency_are_drawn_told_in_tables_and_dated_in_utc_too(
    new_context: NewContext, http: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await add(http, "sql", adapter_folders[0])
    await add(http, "json", adapter_folders[1])
    page = await (await new_context(timezone_id=ZONE.key, locale="en-GB")).new_page()
    await page.goto("/adapters/sql")
    await expect(page.locator("#latency-chart")).to_have_text("No requests yet.")
    assert await ink(page, "traffic-chart", "--accent") == 0
    [sql, _] = engine.registered
    engine.delay = 0.02  # else a request's two points lie upon each other
    for _ in range(3):
        assert (await say(http, "sql")).status_code == 200
    assert (await say(http, "json")).status_code == 200
    engine.fails = {sql}
    assert (await say(http, "sql")).status_code == 500
    await page.reload()

    hours = await table_of(page, "traffic-chart")
    await expect(hours).to_have_count(24)
    await expect(hours.nth(0).locator("td").nth(1)).to_have_text("4")
    await expect(hours.nth(0).locator("td").nth(2)).to_have_text("1")
    assert await is_drawn(page, "traffic-chart", "--accent", 20)
    assert await is_drawn(page, "traffic-chart", "--bad", 20)
    answered = [one for one in reversed(state.metrics.recent) if one.model == "sql"]
    told = [
        [f"{datetime.fromtimestamp(one.at, ZONE):%H:%M:%S}", *map(milliseconds, (one.first_token, one.duration))]
        for one in sorted(answered, key=lambda one: -one.at)
    ]
    latest = await table_of(page, "latency-chart")
    await expect(latest).to_have_count(4)
    assert [await row.locator("td").all_inner_texts() for row in await latest.all()] == told
    assert await is_drawn(page, "latency-chart", "--accent", 10)
    assert await is_drawn(page, "latency-chart", "--warn", 10)

    began = state.metrics.hours.of("default", "sql")[-1][0]
    local, utc = (datetime.fromtimestamp(began, zone) for zone in (ZONE, UTC))
    moment = f"{local:%H:%M} ({utc:%H:%M} UTC)"
    await expect(await point_at(page, "traffic-chart", 0.99)).to_have_text([moment, "4", "1"])
    title = f"{local:%d/%m/%Y, %H:%M:%S} ({utc:%Y-%m-%d %H:%M} UTC)"
    await expect(hours.nth(0).locator("time")).to_have_attribute("title", title)


def milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{round(1000 * seconds):,}\u00a0ms"
