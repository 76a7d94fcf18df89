"""An alias shifts in the browser: a candidate gets a share, is promoted and rolled back; a guard's deed is seen."""

from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine, sentence_of
from tests.web.test_adapters_api import add, said, say

from .conftest import confirmed

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


def card(page: Page) -> Locator:
    return page.locator("#aliases")


async def press(page: Page, button: str) -> None:
    await card(page).get_by_role("button", name=button, exact=True).click()


async def test_an_alias_shifts(
    page: Page, http: httpx.AsyncClient, state: State, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    digests = [(await add(http, "sql", folder)).json()["version"]["digest"] for folder in adapter_folders]
    await page.goto("/adapters/sql")
    await expect(card(page)).to_contain_text("Version 2 serves all callers of sql")
    await card(page).get_by_label("Alias").fill("default")
    await card(page).get_by_label("Target version").select_option("1")
    await confirmed(page, card(page).get_by_role("button", name="Add route"))
    await expect(page.get_by_role("row", name="1 current")).to_contain_text("@default")
    assert await said(http, "sql") == sentence_of(digests[0])

    await card(page).get_by_label("Candidate").select_option("2")
    await card(page).get_by_label("gets").fill("100")
    await press(page, "Start canary")
    await expect(page.get_by_text("Shares saved.")).to_be_visible()
    await expect(card(page).get_by_role("row", name="2 candidate")).to_contain_text("100 %")
    assert await said(http, "sql") == sentence_of(digests[1])
    await expect(card(page).get_by_role("row", name="2 candidate").get_by_role("cell").nth(4)).to_have_text("1")

    await confirmed(page, card(page).get_by_role("button", name="Promote version 2"))
    await expect(page.get_by_role("row", name="2 current")).to_contain_text("@default")
    await confirmed(page, card(page).get_by_role("button", name="Roll back to version 1"))
    await expect(page.get_by_text("Rolled back. The stable version")).to_be_visible()
    assert await said(http, "sql") == sentence_of(digests[0])

    await card(page).get_by_label("Max error rate").fill("5")
    await card(page).get_by_label("after").fill("2")
    await press(page, "Save guard")
    await card(page).get_by_label("Candidate").select_option("2")
    await card(page).get_by_label("gets").fill("100")
    await press(page, "Start canary")
    await expect(page.get_by_text("Shares saved.")).to_be_visible()
    engine.fails = {digests[1]}
    for _ in range(2):
        assert (await say(http, "sql")).status_code == 500
    await state.guard.look()
    await page.goto("/")
    await page.get_by_role("link", name="sql@default was rolled back. Version 2 failed 2 of 2 requests").click()
    await expect(card(page).get_by_role("alert")).to_contain_text("the guard allows 5.0 %")
    assert await said(http, "sql") == sentence_of(digests[0])
    await press(page, "Dismiss")
    await expect(card(page).get_by_role("alert")).to_have_count(0)

    await card(page).get_by_label("Share of requests").fill("20")
    await press(page, "Save shadow")
    await expect(card(page).get_by_role("row", name="2 shadow")).to_contain_text("20 %")
    await press(page, "Stop shadow")
    await confirmed(page, card(page).get_by_role("button", name="Stop pinning the default version"))
    await expect(card(page)).to_contain_text("Version 2 serves all callers of sql")
