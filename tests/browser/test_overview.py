import asyncio
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from tests.web.fake_engine import FakeEngine
from tests.web.test_adapters_api import add

from .conftest import listening

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

COLOURS = """() => {
  const canvas = document.getElementById("block-map");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  for (let i = 0; i < data.length; i += 4) if (data[i + 3]) seen.add(data.slice(i, i + 3).join());
  return seen.size;
}"""


async def generate(http: httpx.AsyncClient, model: str, tokens: int) -> None:
    body = {"model": model, "prompt": "a", "max_tokens": tokens, "ignore_eos": True}
    assert (await http.post("/v1/completions", json=body)).status_code == 200


async def test_figures_move_with_the_traffic(page: Page, http: httpx.AsyncClient) -> None:
    await page.goto("/")
    await listening(page)
    await expect(page.get_by_text("No requests yet")).to_be_visible()
    await asyncio.gather(*(generate(http, "tiny", 50) for _ in range(3)))
    # Of the last ten seconds, and so the first to be looked at.
    await expect(page.locator('[data-bind="traffic.tokens_per_second"]')).to_have_text("15.0")
    await expect(page.locator('[data-bind="traffic.requests_per_minute"]')).to_have_text("3")
    await expect(page.get_by_text("No requests yet")).to_be_hidden()
    await expect(page.locator(".side").get_by_text("Ready · CPU")).to_be_visible()


async def test_an_error_stands_out(page: Page, http: httpx.AsyncClient, engine: FakeEngine) -> None:
    await page.goto("/")
    figure = page.locator('[data-figure="errors_per_minute"]')
    await expect(figure).to_have_attribute("data-tone", "")
    engine.delay = 0.5  # longer than anybody looks
    body = {"model": "tiny", "prompt": "a", "max_tokens": 200, "ignore_eos": True}
    running = asyncio.create_task(http.post("/v1/completions", json=body))
    await expect(page.locator('[data-bind="engine.running"]')).to_have_text("1")
    engine.crash()
    assert (await running).status_code >= 500
    await expect(figure).to_have_attribute("data-tone", "bad")
    await expect(figure).to_contain_text("1 /min")


async def test_the_block_map_shows_who_holds_blocks(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await add(http, "sql", adapter_folders[0])
    await page.goto("/")
    await expect(page.get_by_text("One square is 16 tokens.")).to_be_visible()
    assert await page.evaluate(COLOURS) == 2  # free and cached
    engine.delay = 0.5  # longer than anybody looks
    running = [asyncio.create_task(generate(http, model, 100)) for model in ("tiny", "sql")]
    legend = page.locator("#block-legend")
    await expect(legend).to_have_text(re.compile(r"^sql [1-9]\d*$"))
    await expect(page.locator("#count-base")).to_have_text(re.compile(r"^[1-9]"))
    assert await page.evaluate(COLOURS) == 4  # and the base and the adapter
    await expect(page.locator('[data-bind="engine.running"]')).to_have_text("2")
    engine.delay = 0.0
    await asyncio.gather(*running)
    await expect(legend).to_be_empty()
    await expect(page.locator("#count-base")).to_have_text("0")
    assert await page.evaluate(COLOURS) == 2


async def test_bars_say_how_full_each_memory_is(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await add(http, "sql", adapter_folders[0])
    await page.goto("/")
    bars = page.locator("#tiers > div")
    await expect(bars.locator("strong")).to_have_text(["KV cache", "Adapter memory", "Host cache"])
    await expect(bars.nth(1)).to_contain_text("0 B of 1.0 MB")
    await http.post("/api/v1/adapters/sql/load")
    await expect(bars.nth(1)).to_contain_text("1.0 kB of 1.0 MB")
    width = "(bar) => bar.firstElementChild.style.width"
    assert await bars.nth(1).locator(".bar").evaluate(width) == "0.1%"


async def test_adapters_in_memory_are_tiles_that_lead_to_their_pages(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    for name, folder in zip(("sql", "json"), adapter_folders, strict=True):
        await add(http, name, folder)
    await page.goto("/")
    await expect(page.get_by_text("0 of 2 adapters in memory")).to_be_visible()
    await http.post("/api/v1/adapters/sql/load")
    await expect(page.locator(".tile")).to_have_count(1)
    await expect(page.locator(".tile")).to_contain_text("not used yet")
    await expect(page.get_by_text("1 of 2 adapters in memory")).to_be_visible()
    await page.get_by_role("link", name="sql").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("sql")


async def test_a_lost_engine_is_said_on_every_page(page: Page, engine: FakeEngine) -> None:
    await page.goto("/adapters")
    engine.crash()
    await expect(page.locator(".side").get_by_text("Restarting")).to_be_visible()
    await engine.start()
    await expect(page.locator(".side").get_by_text("Ready · CPU")).to_be_visible()


async def test_what_needs_attention_is_said_and_the_curves_have_a_table(page: Page, engine: FakeEngine) -> None:
    await page.goto("/")
    await expect(page.locator("#attention")).to_be_hidden()
    await page.locator("#figure-values summary").click()
    await expect(page.locator("#figure-values tbody tr")).to_have_count(60)
    engine.restarts = 2
    await page.get_by_role("link", name="The engine has restarted 2 times").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("System")
    await expect(page.get_by_text("! 2", exact=True)).to_be_visible()


async def test_a_request_is_found_by_its_id(page: Page, http: httpx.AsyncClient) -> None:
    for name in ("first-1", "second-2"):
        body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
        await http.post("/v1/completions", json=body, headers={"x-request-id": name})
    await page.goto("/requests")
    await listening(page)
    await page.keyboard.type("/second")
    await expect(page.locator("#request-rows code")).to_have_text(["second-2"])
    await http.post("/v1/completions", json=body, headers={"x-request-id": "second-3"})
    await expect(page.locator("#request-rows code")).to_have_text(["second-3", "second-2"])
