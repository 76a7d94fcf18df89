"""The serving profile in a browser: typed, previewed, refused without losing a word, saved, and used to play."""

from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from tests.web.fake_engine import FakeEngine
from tests.web.test_adapters_api import add

from .conftest import Watch

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]
PATH = "/api/v1/adapters/sql/profile"


def card(page: Page) -> Locator:
    return page.locator("#profile")


async def press(page: Page, button: str) -> None:
    await card(page).get_by_role("button", name=button, exact=True).click()


async def test_typed_previewed_refused_and_saved(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], watch: Watch
) -> None:
    watch.expected = ["400"]
    await add(http, "sql", adapter_folders[0])
    await page.goto("/adapters/sql")
    await expect(card(page)).to_contain_text("No defaults set")
    await card(page).get_by_label("System prompt").fill("\nAnswer in <b>SQL</b>.\nOnly.")
    await card(page).get_by_label("Sample message").fill("Who is above 30?")
    await press(page, "Preview prompt")
    shown = card(page).locator("#profile-preview pre")
    await expect(shown).to_have_text(
        "<|system|>\nAnswer in <b>SQL</b>.\nOnly.</s><|user|>Who is above 30?</s><|assistant|>", use_inner_text=True
    )
    assert (await http.get(PATH)).json()["profile"] is None
    await card(page).get_by_label("Temperature").fill("101")
    await press(page, "Save profile")
    await expect(card(page).get_by_role("alert")).to_contain_text("Not saved. temperature")
    await expect(card(page).get_by_label("System prompt")).to_have_value("\nAnswer in <b>SQL</b>.\nOnly.")
    await card(page).get_by_label("Temperature").fill("0.5")
    await card(page).get_by_label("Stop strings").fill('###\n"\\n\\n"')
    await press(page, "Save profile")
    await expect(card(page).get_by_role("status")).to_contain_text("Saved.")
    profile = {"system_prompt": "\nAnswer in <b>SQL</b>.\nOnly.", "temperature": 0.5, "stop": ["###", "\n\n"]}
    assert (await http.get(PATH)).json()["profile"] == profile
    await page.reload()
    await expect(card(page)).to_contain_text("system prompt, temperature 0.5, 2 stop strings")
    await press(page, "Save profile")
    await expect(card(page).get_by_role("status")).to_contain_text("Saved.")
    assert (await http.get(PATH)).json()["profile"] == profile, "saving what stands there changes nothing"


async def test_another_version_has_its_own(page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]) -> None:
    for seed, folder in enumerate(adapter_folders):
        await add(http, "sql", folder)
        await http.put(PATH, json={"seed": seed})
    await page.goto("/adapters/sql")
    await expect(card(page).get_by_label("Seed")).to_have_value("1")
    await page.get_by_role("button", name="Profile", exact=True).click()
    await expect(card(page)).to_contain_text("version 1 · seed 0")
    await card(page).get_by_label("Seed").fill("")
    await press(page, "Save profile")
    await expect(card(page).get_by_role("status")).to_contain_text("Removed.")
    assert (await http.get("/api/v1/adapters/sql@1/profile")).json()["profile"] is None
    assert (await http.get(PATH)).json()["profile"] == {"seed": 1}


async def test_the_playground_asks_as_the_profile_says(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await add(http, "sql", adapter_folders[0])
    await http.put(PATH, json={"system_prompt": "Be brief.", "temperature": 0.7, "max_tokens_limit": 5})
    await page.goto("/playground?model=sql")
    await page.get_by_role("button", name="Run").click()
    pane = page.locator(".pane", has_text="sql")
    await expect(pane.locator("h2")).to_contain_text("profile: system prompt, temperature 0.7, max tokens cap 5")
    await expect(page.locator("#spoken")).to_have_text("All answers are complete.")
    asked = {bool(request.adapters): request.params for request in engine.requests}
    assert (asked[True].temperature, asked[True].max_tokens, asked[True].seed) == (0.7, 5, 0)
    assert (asked[False].temperature, asked[False].max_tokens) == (0, 128)
    await page.get_by_label("Use each adapter's default settings").uncheck()
    await page.get_by_label("Max tokens").fill("4")
    await page.get_by_role("button", name="Regenerate").click()
    await expect(page.locator(".pane footer", has_text="4 tokens")).to_have_count(2)
    assert [request.params.temperature for request in engine.requests[2:]] == [0, 0]
