"""Pages in a window as narrow as a telephone: nothing sticks out, the menu is one line, and charts look whole."""

from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, ViewportSize, expect

from tests.web.fake_engine import FakeEngine

from .conftest import NewContext, listening
from .drawings import is_drawn, point_at
from .test_accessible import PAGES
from .test_overview import generate
from .test_roles import furnish

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

NARROW = ViewportSize(width=390, height=844)
MENU_HEIGHT = 64
STICKING_OUT = """(scrolls) => [...document.querySelectorAll("body *")]
  .filter((one) => !one.matches(".skip, .visually-hidden") && !one.parentElement.closest(scrolls))
  .filter((one) => one.getClientRects().length && one.getBoundingClientRect().right > innerWidth + 0.5)
  .map((one) => one.outerHTML.slice(0, 120))"""
SCROLLS = ".table-scroll, pre, .uplot"
"""What scrolls by itself, or is drawn to the width of its place."""


async def narrow_page(new_context: NewContext, **options: object) -> Page:
    return await (await new_context(viewport=NARROW, reduced_motion="reduce", **options)).new_page()


async def test_nothing_is_wider_than_the_window(
    new_context: NewContext, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await furnish(http, adapter_folders)
    await generate(http, "sql", 5)
    page = await narrow_page(new_context)
    for path in PAGES:
        if path == "/adapters/no" or path.startswith("/keys/"):
            continue
        await page.goto(path)
        await listening(page)
        await page.evaluate("document.querySelectorAll('main details').forEach((one) => (one.open = true))")
        await page.evaluate("document.getElementById('live').textContent = 'reconnecting…'")
        assert await page.evaluate(STICKING_OUT, SCROLLS) == [], path
        assert await page.evaluate("document.documentElement.scrollWidth") == NARROW["width"], path
        box = await page.locator(".side").bounding_box()
        assert box is not None and box["height"] <= MENU_HEIGHT, path


@pytest.mark.parametrize("scripts", [True, False])
async def test_the_menu_opens_with_and_without_scripts(new_context: NewContext, scripts: bool) -> None:
    page = await narrow_page(new_context, java_script_enabled=scripts)
    await page.goto("/")
    link = page.get_by_role("navigation", name="Main").get_by_role("link", name="Adapters")
    await expect(link).to_be_hidden()
    await page.get_by_role("button", name="Menu").click()
    await expect(page.get_by_role("button", name="Log out")).to_be_visible()
    await link.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Adapters")


async def test_the_menu_is_a_part_of_a_wide_page(page: Page) -> None:
    await page.goto("/")
    await expect(page.get_by_role("navigation", name="Main").get_by_role("link", name="System")).to_be_visible()
    await expect(page.get_by_role("button", name="Menu")).to_be_hidden()


async def test_no_errors_are_a_line_at_zero(
    new_context: NewContext, http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    await generate(http, "tiny", 5)
    page = await narrow_page(new_context)
    await page.goto("/")
    await listening(page)
    tile = page.locator("[data-figure='errors_per_minute']")
    await expect(tile.locator(".value")).to_have_text("0 /min")
    assert await is_drawn(page, "errors_per_minute-spark", "--accent", 20)


async def test_a_legend_has_a_time_while_one_points_at_it(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await furnish(http, adapter_folders)
    await generate(http, "sql", 5)
    await page.goto("/adapters/sql")
    legend = page.locator("#traffic-chart .u-legend")
    await expect(legend.locator("tr").nth(1)).to_be_visible()
    await expect(legend.locator("tr").first).to_be_hidden()
    assert "–" not in await legend.inner_text()
    values = await point_at(page, "traffic-chart", 0.99)
    await expect(legend.locator("tr").first).to_be_visible()
    await expect(values.nth(1)).to_have_text("1")
