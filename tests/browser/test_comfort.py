"""What makes the dashboard pleasant everywhere: themes, small screens, keyboard, the live dot."""

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import httpx
import pytest
from playwright.async_api import Page, Request, expect

from loraplex.web.state import State
from tests.web.test_adapters_api import add

from .conftest import MILLISECONDS, Hold, NewContext, Watch, listening
from .test_overview import generate

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PAGES = (
    *("/", "/adapters", "/adapters/sql", "/upload", "/cache", "/playground", "/requests", "/system"),
    *("/usage", "/usage?by=day,key,adapter", "/keys", "/users", "/users/admin", "/tenants", "/tenants/default"),
    *("/audit", "/audit/1", "/account", "/adapters/unknown"),
)
LONG_NAME = "a-name-as-long-as-names-may-be-0123456789-0123456789-0123456789"
LISTS = ("/adapters", "/requests", f"/adapters/{LONG_NAME}")


CUT = """() => [...document.querySelectorAll("input[type=search]")].filter((field) => {
    const style = getComputedStyle(field), pen = document.createElement("canvas").getContext("2d");
    pen.font = style.font;
    const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return pen.measureText(field.placeholder).width > room;
}).map((field) => field.placeholder)"""
"""Placeholders of search fields that are longer than their field."""


async def background(page: Page) -> str:
    colour: str = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


@pytest.mark.parametrize("system", ["light", "dark"])
async def test_the_theme_follows_the_system_until_one_is_chosen(new_context: NewContext, system: str) -> None:
    page = await (await new_context(color_scheme=system)).new_page()
    await page.goto("/")
    own = await background(page)
    assert own == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 28)"}[system]
    await page.get_by_role("button", name="Theme").click()
    other = await background(page)
    assert other != own
    await page.goto("/adapters")
    assert await background(page) == other


@pytest.mark.parametrize(
    ("width", "paths"),
    [(400, (*PAGES, LISTS[-1])), (800, (*PAGES, LISTS[-1])), (962, LISTS), (1120, LISTS)],
    ids=["400", "800", "962", "1120"],
)
async def test_nothing_scrolls_sideways(
    new_context: NewContext,
    http: httpx.AsyncClient,
    adapter_folders: list[Path],
    watch: Watch,
    width: int,
    paths: tuple[str, ...],
) -> None:
    """Nor do the two lists that everybody reads, on a telephone and on a small laptop, with names as long as may be."""
    watch.expected = ["404"]
    await add(http, "sql", adapter_folders[0])
    await add(http, LONG_NAME, adapter_folders[1])
    await http.post(f"/api/v1/adapters/{LONG_NAME}/load")
    await generate(http, LONG_NAME, 20)
    page = await (await new_context(viewport={"width": width, "height": 800})).new_page()
    for path in paths:
        await page.goto(path)
        await listening(page)
        assert await page.evaluate("document.documentElement.scrollWidth") == width, path
        if path in ("/adapters", "/requests"):
            lists = "[...document.querySelectorAll('#adapter-rows, #request-rows')]"
            assert await page.evaluate(f"{lists}.map((one) => one.scrollWidth - one.clientWidth)") == [0], path
        assert await page.evaluate(CUT) == [], path


async def test_keys_lead_everywhere(page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    await add(http, "sql", adapter_folders[0])
    await page.goto("/")
    for keys, path in (
        ("ga", "/adapters"),
        ("gp", "/playground"),
        ("gu", "/upload"),
        ("gc", "/cache"),
        ("gr", "/requests"),
        ("gs", "/system"),
        ("gn", "/usage"),
        ("gk", "/keys"),
        ("gm", "/users"),
        ("gt", "/tenants"),
        ("gl", "/audit"),
        ("go", "/"),
        ("ga", "/adapters"),
    ):
        await listening(page)
        await page.keyboard.press("Escape")  # out of the field that a page may begin in
        await page.keyboard.type(keys)
        await expect(page).to_have_url(re.compile(f"[0-9]{path}$"))
    await listening(page)
    await page.keyboard.press("/")
    search = page.get_by_label("Search adapters")
    await expect(search).to_be_focused()
    await page.keyboard.type("ga/")
    await expect(search).to_have_value("ga/")
    await page.keyboard.press("Escape")
    await expect(search).not_to_be_focused()
    await page.keyboard.press("g")
    await page.keyboard.press("o")
    await expect(page).to_have_url(re.compile("[0-9]/$"))


async def test_the_first_tab_skips_to_the_content(page: Page) -> None:
    await page.goto("/")
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to content")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()


async def test_the_dot_says_when_the_server_is_silent_and_when_it_is_back(
    page: Page, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch.expected = ["ERR_", "Failed to load"]
    await page.goto("/")
    dot, engine = page.locator("#live"), page.locator(".side [data-bind='engine.words']")
    await expect(dot).to_have_text("live")
    ready = await engine.inner_text()
    with monkeypatch.context() as patch:
        patch.setattr("loraplex.web.admin.overview.live.LIVE_SECONDS", 600.0)
        await expect(dot).to_have_text("reconnecting…")
        await page.context.set_offline(True)
        await asyncio.sleep(0.5)
        await expect(dot).to_have_text("reconnecting…")
        await expect(engine).to_have_text("No response")
    await page.context.set_offline(False)
    await expect(dot).to_have_text("live")
    await expect(engine).to_have_text(ready)


async def test_where_no_stream_comes_through_figures_still_move_every_five_seconds(
    page: Page, http: httpx.AsyncClient, watch: Watch, hold: Hold
) -> None:
    """As behind a proxy that holds streams back: the dot says so, and polls bring what has changed."""
    watch.expected = ["ERR_"]
    polls: list[Request] = []
    page.on("request", lambda request: request.url.endswith("/dashboard/state") and polls.append(request))
    await page.route("**/dashboard/live", hold)
    await page.goto("/")
    requests = page.locator('[data-bind="traffic.requests_per_minute"]')
    await expect(requests).to_have_text("0")
    await expect(page.locator("#live")).to_have_text("reconnecting…")
    await generate(http, "tiny", 2)
    await expect(requests).to_have_text("1")
    first, second = (poll.timing["startTime"] for poll in polls[:2])
    assert 4_000 < second - first < MILLISECONDS, "as the browser's own clock has it"


async def test_times_are_local_and_say_utc_when_pointed_at(
    new_context: NewContext, http: httpx.AsyncClient, state: State
) -> None:
    page = await (await new_context(timezone_id="Asia/Kolkata", locale="en-GB")).new_page()
    await generate(http, "tiny", 2)
    at = state.metrics.recent[0].at
    await page.goto("/requests")
    time_of_request = page.locator("#request-rows time").first
    local = datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo("Asia/Kolkata"))
    await expect(time_of_request).to_have_text(f"{local:%H:%M:%S}")
    async with page.expect_response(lambda answer: "/requests?search=" in answer.url):
        """The list as it is a moment later, in which only the text of its times differs."""
    await asyncio.sleep(0.3)
    await expect(time_of_request).to_have_text(f"{local:%H:%M:%S}")
    await expect(time_of_request).to_have_attribute(
        "title", f"{local:%d/%m/%Y, %H:%M:%S} ({datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC)"
    )
    since = datetime.fromtimestamp(state.metrics.log.kept_since("default"), UTC).astimezone(ZoneInfo("Asia/Kolkata"))
    await page.goto("/requests?search=req-unknown")
    await expect(page.locator("#request-rows time")).to_have_text(f"{since:%d/%m/%Y, %H:%M:%S}")
    entry = (await asyncio.to_thread(state.registry.audit.entries, 1))[0]
    written = entry.at.astimezone(ZoneInfo("Asia/Kolkata"))
    await page.goto(f"/audit/{entry.id}")
    time_of_entry = page.locator("main time").first
    await expect(time_of_entry).to_have_text(f"{written:%d/%m/%Y, %H:%M:%S}")
    await expect(time_of_entry).to_have_attribute(
        "title", f"{written:%d/%m/%Y, %H:%M:%S} ({entry.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC)"
    )


@pytest.mark.parametrize(("wish", "seconds"), [("reduce", "0s"), ("no-preference", "0.3s")])
async def test_nothing_moves_for_who_asks_for_stillness(new_context: NewContext, wish: str, seconds: str) -> None:
    page = await (await new_context(reduced_motion=wish)).new_page()
    await page.goto("/")
    await page.locator("#tiers .bar").first.wait_for()
    moving = "[...document.querySelectorAll('*')].map((one) => getComputedStyle(one))"
    durations = await page.evaluate(f"{moving}.flatMap((one) => [one.transitionDuration, one.animationDuration])")
    assert set(durations) == {"0s", seconds}


async def test_pages_that_nobody_looks_at_hold_no_connection(page: Page) -> None:
    closed: list[str] = []
    page.on("requestfailed", lambda request: closed.append(request.url))
    await page.goto("/")
    await listening(page)
    await page.evaluate(
        "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    async with asyncio.timeout(60):
        while not any(url.endswith("/dashboard/live") for url in closed):
            await asyncio.sleep(0.05)
