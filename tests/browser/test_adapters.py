import asyncio
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine
from tests.web.test_adapters_api import add, say

from .conftest import NewContext, Watch, confirmed

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def add_named(http: httpx.AsyncClient, folders: list[Path], *names: str) -> None:
    for number, name in enumerate(names):
        assert (await add(http, name, folders[number % len(folders)])).status_code == 201


async def press(page: Page, button: str) -> None:
    await page.get_by_role("button", name=button, exact=True).click()


async def test_without_adapters_the_page_teaches_how_to_add_one(page: Page) -> None:
    await page.goto("/adapters")
    await expect(page.get_by_role("heading", name="No adapters yet")).to_be_visible()
    await expect(page.get_by_text("loraplex adapters push")).to_be_visible()
    await page.get_by_role("link", name="Upload the first one").click()
    await expect(page).to_have_url(re.compile("/upload$"))


async def test_the_list_is_searched_while_typing(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await add_named(http, adapter_folders, "sql-writer", "sentiment", "json-extract")
    await page.goto("/adapters")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(3)
    await page.get_by_label("Search adapters").press_sequentially("SQL")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("sql-writer")
    await page.get_by_label("Search adapters").fill("no such thing")
    await expect(page.get_by_text("No adapter matches “no such thing”")).to_be_visible()
    await page.get_by_label("Search adapters").fill("")
    await expect(rows).to_have_count(3)


async def test_the_list_is_narrowed_to_a_state_and_ordered(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await add_named(http, adapter_folders, "a", "b", "c")
    await http.post("/api/v1/adapters/b/load")
    await http.patch("/api/v1/adapters/b", json={"pinned": True})
    await http.patch("/api/v1/adapters/a", json={"enabled": False})
    assert (await say(http, "c")).status_code == 200
    await page.goto("/adapters")
    names = page.locator("tbody td:first-child a")
    for state, found in (
        ("Pinned", ["b"]),
        ("Disabled", ["a"]),
        ("In host cache", []),
        ("All states", ["a", "b", "c"]),
    ):
        await page.get_by_label("Show which adapters").select_option(state)
        await expect(names).to_have_text(found)
    for order, found in (
        ("Newest", ["c", "b", "a"]),
        ("Most requests, 24 h", ["c", "a", "b"]),
        ("By name", ["a", "b", "c"]),
    ):
        await page.get_by_label("In which order").select_option(order)
        await expect(names).to_have_text(found)


async def test_a_long_list_is_shown_piece_by_piece(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loraplex.web.admin.adapters.adapters.PAGE_ROWS", 2)
    await add_named(http, adapter_folders, "a1", "a2", "a3", "a4", "a5")
    await page.goto("/adapters")
    links = page.locator("tbody td:first-child a[href*='/adapters/a']")
    for count in (4, 5):
        await page.get_by_role("link", name="Show more").click()
        await expect(links).to_have_count(count)
    await expect(page.get_by_role("link", name="Show more")).to_have_count(0)


async def test_the_state_follows_the_engine_without_a_reload(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await add_named(http, adapter_folders, "sql")
    await page.goto("/adapters")
    await expect(page.get_by_role("row", name="sql")).to_contain_text("Ready · on disk")
    await http.post("/api/v1/adapters/sql/load")
    await expect(page.get_by_role("row", name="sql")).to_contain_text("Ready · in memory")
    await http.post("/api/v1/adapters/sql/evict")
    await expect(page.get_by_role("row", name="sql")).to_contain_text("Ready · on disk")


async def test_the_buttons_do_what_they_say(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await add_named(http, adapter_folders, "sql")
    await page.goto("/adapters/sql")
    [digest] = engine.registered
    await press(page, "Load now")
    await expect(page.get_by_text("Loaded into memory.")).to_be_visible()
    assert digest in engine.resident
    await expect(page.get_by_text("Ready · in memory")).to_be_visible()
    await press(page, "Evict")
    await expect(page.get_by_text("Ready · on disk")).to_be_visible()
    assert digest not in engine.resident
    await press(page, "Pin")
    await expect(page.get_by_text("pinned", exact=True)).to_be_visible()
    assert engine.registered[digest].pinned
    await press(page, "Unpin")
    await expect(page.get_by_text("pinned", exact=True)).to_be_hidden()
    assert not engine.registered[digest].pinned
    await confirmed(page, page.get_by_role("button", name="Disable", exact=True))
    await expect(page.locator("main .tag").first).to_have_text("Disabled")
    assert (await say(http, "sql")).status_code == 400
    await press(page, "Enable")
    assert (await say(http, "sql")).status_code == 200


async def test_an_older_version_is_one_click_away(
    page: Page, http: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    for folder in adapter_folders:
        await add(http, "sql", folder)
    await page.goto("/adapters/sql")
    await expect(page.get_by_role("heading", name="Version 2")).to_be_visible()
    await confirmed(page, page.get_by_role("row", name="2 current").get_by_role("button", name="Disable"))
    await expect(page.get_by_role("heading", name="Version 1")).to_be_visible()
    adapter = await asyncio.to_thread(state.registry.adapters.get, "sql")
    latest = adapter.latest()
    assert latest is not None
    assert latest.number == 1


async def test_deleting_asks_for_the_name(
    page: Page, http: httpx.AsyncClient, state: State, adapter_folders: list[Path], watch: Watch
) -> None:
    watch.expected = ["400", "404"]
    await add_named(http, adapter_folders, "sql")
    await say(http, "sql")
    await asyncio.to_thread(state.quotas.ledger.flush)
    await page.goto("/adapters/sql")
    await expect(page.get_by_text("1 request of 1 caller in the last day (admin 1); no aliases.")).to_be_visible()
    field = page.get_by_label("Type the adapter's name to confirm")
    await field.fill("sq")
    await press(page, "Delete adapter")
    await expect(page.get_by_text("Nothing was deleted.")).to_be_visible()
    await field.fill("sql")
    await confirmed(page, page.get_by_role("button", name="Delete adapter"))
    await expect(page.get_by_text("Deleted. Running requests finish.")).to_be_visible()
    await expect(page.get_by_text("No adapters yet")).to_be_visible()
    await page.goto("/adapters/sql")
    await expect(page.get_by_role("heading", name="Not found")).to_be_visible()


async def test_what_the_engine_refuses_is_said_in_words(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await add_named(http, adapter_folders, "sql")
    await page.goto("/adapters/sql")
    engine.refused.update(engine.registered)
    await confirmed(page, page.get_by_role("button", name="Disable", exact=True))
    await press(page, "Enable")
    await expect(page.locator("main .tag").first).to_have_text("Failed: its weights do not fit into the adapter memory")


async def test_snippets_are_copied(
    new_context: NewContext, address: str, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await add_named(http, adapter_folders, "sql")
    page = await (await new_context(permissions=["clipboard-read", "clipboard-write"])).new_page()
    await page.goto("/adapters/sql")
    await page.locator("summary", has_text="Python").click()
    snippet = page.locator("details[name=snippet][open]")
    await snippet.get_by_role("button", name="Copy").click()
    await expect(snippet.get_by_role("button", name="Copied")).to_be_visible()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert f'base_url="{address}/v1"' in copied
    assert 'model="sql"' in copied
