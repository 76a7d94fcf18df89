"""A canary by request, its promotion and the way back: few clicks, and each that moves callers says whom."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine, sentence_of
from tests.web.routed import ask
from tests.web.test_adapters_api import add, said

from .clicks import Clicks
from .conftest import NewContext, Watch, listening

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

MOST_CLICKS = 6


async def pinned(http: httpx.AsyncClient, state: State, folders: list[Path]) -> list[str]:
    """Digests of two versions of `sql`: the name means the first, which had three requests; the second is inactive."""
    first = (await add(http, "sql", folders[0])).json()["version"]["digest"]
    for _ in range(3):
        assert (await ask(http, "sql")).status_code == 200
    await asyncio.to_thread(state.quotas.ledger.flush)
    sent = json.loads((await add(http, "other", folders[1])).request.content)
    added = await http.post("/api/v1/adapters/sql/versions", json=sent | {"activate": "inactive"})
    return [first, added.json()["version"]["digest"]]


def dialog(page: Page) -> Locator:
    return page.locator("#confirm-dialog")


async def test_canary_by_request_promote_and_undo(
    page: Page, http: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    digests = await pinned(http, state, adapter_folders)
    clicks, section = Clicks(), page.locator("#aliases")
    await page.goto("/")
    await listening(page)
    await clicks.press(page.get_by_role("link", name="Adapters", exact=True))
    await clicks.press(page.locator("#adapter-rows").get_by_role("link", name="sql", exact=True))
    await clicks.press(section.get_by_role("button", name="Start canary"))
    row = section.get_by_role("row", name="2 candidate")
    await expect(row).to_contain_text("10 % of requests")
    versions = [(await ask(http, "sql")).headers["x-loraplex-version"] for _ in range(100)]
    assert 0 < versions.count("sql@2") < 40, "one key, and both versions answer"
    await listening(page)
    await clicks.press(section.get_by_role("button", name="Promote version 2"))
    await expect(dialog(page)).to_contain_text("go from version 1 (90 % of requests) and version 2 (10 % of requests)")
    await expect(dialog(page)).to_contain_text("Version 1 had 3 requests of 1 caller in the last day")
    await clicks.press(dialog(page).get_by_role("button", name="Promote version 2"))
    await expect(page.get_by_role("row", name="2 current")).to_contain_text("@default")
    assert await said(http, "sql") == sentence_of(digests[1])
    await page.goto("/usage")
    await expect(page.locator("#undo")).to_contain_text("The candidate of sql was promoted.")
    await clicks.press(page.get_by_role("button", name="Undo"))
    await expect(row).to_contain_text("10 % of requests")
    await expect(page.locator("#undo")).to_have_count(0)
    assert clicks.count <= MOST_CLICKS


async def test_a_dialog_is_answered_by_keyboard(
    page: Page, http: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await pinned(http, state, adapter_folders)
    await page.goto("/adapters/sql")
    await listening(page)
    button = page.get_by_role("button", name="Stop pinning the default version")
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(dialog(page)).to_contain_text("Requests for sql go from version 1 to version 2.")
    await page.keyboard.press("Escape")
    await expect(dialog(page)).to_be_hidden()
    await expect(page.locator("#undo")).to_have_count(0)
    await button.focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await expect(page.locator("#aliases")).to_contain_text("Version 2 serves all callers of sql")
    assert engine.registered


async def test_each_choice_of_a_list_has_its_own_words(
    page: Page, http: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    await pinned(http, state, adapter_folders)
    await http.put("/api/v1/adapters/sql/aliases/prod", json={"version": 2})
    await page.goto("/adapters/sql")
    await listening(page)
    await page.locator("#aliases summary", has_text="sql@prod").click()
    form = page.locator('form[action$="/aliases/prod/target"]')
    await form.get_by_label("Target version").select_option("1")
    await form.get_by_role("button", name="Use for all").click()
    await expect(dialog(page)).to_contain_text("Requests for sql@prod go from version 2 to version 1.")


async def test_few_callers_are_warned_of_before_saving(
    page: Page, http: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    await pinned(http, state, adapter_folders)
    await page.goto("/adapters/sql")
    warning = page.locator("#aliases .by-caller")
    await expect(warning).to_be_hidden()
    await page.get_by_label("of the").select_option("caller")
    await expect(warning).to_contain_text("Only 1 caller asked in the last day.")
    await page.get_by_label("of the").select_option("request")
    await expect(warning).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_bar_and_the_dialog_fit_a_phone(
    new_context: NewContext,
    http: httpx.AsyncClient,
    state: State,
    adapter_folders: list[Path],
    tmp_path: Path,
    scheme: str,
) -> None:
    await pinned(http, state, adapter_folders)
    context = await new_context(viewport={"width": 390, "height": 780}, color_scheme=scheme)
    page = await context.new_page()
    await page.goto("/adapters/sql")
    await listening(page)
    await page.get_by_role("button", name="Disable", exact=True).first.click()
    await expect(dialog(page)).to_contain_text("sql had 3 requests of 1 caller in the last day")
    await page.screenshot(path=tmp_path / "dialog.png")
    box = await dialog(page).bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390
    await dialog(page).get_by_role("button", name="Disable").click()
    bar = page.locator("#undo")
    await expect(bar).to_contain_text("sql was disabled.")
    box = await bar.bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["y"] + box["height"] <= 780
    await page.screenshot(path=tmp_path / "bar.png")
    beyond = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert beyond == 0
    await bar.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("button", name="Enable", exact=True)).to_have_count(0)


async def test_a_wrong_confirmation_is_corrected_in_place(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], watch: Watch
) -> None:
    watch.expected = ["400"]
    await add(http, "sql", adapter_folders[0])
    await page.goto("/adapters/sql")
    await listening(page)
    field = page.get_by_label("Type the adapter's name to confirm")
    await field.fill("sqk")
    await page.get_by_role("button", name="Delete adapter").click()
    await expect(page.get_by_text("Nothing was deleted. To confirm, type the adapter's name: sql")).to_be_visible()
    await expect(field).to_have_value("sqk")
    await expect(field).to_be_focused()
    await listening(page)
    await field.fill("sql")
    await page.get_by_role("button", name="Delete adapter").click()
    await dialog(page).get_by_role("button", name="Delete adapter").click()
    await expect(page.locator("#undo")).to_contain_text("sql was deleted.")
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("sql")
