"""The parity certificate on an adapter's page and on the overview: asked for, watched, read, out of date."""

import asyncio
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from loraplex.engine.device.computing import Computing
from loraplex.web.certificates.served import ServedPath
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State
from tests.web.fake_certify import FakeCertify
from tests.web.test_adapters_api import add

from .conftest import Watch

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"promotion_min_agreement": 0.98})


def card(page: Page) -> Locator:
    return page.locator("#certificate")


async def press(page: Page, button: str) -> None:
    await card(page).get_by_role("button", name=button, exact=True).click()


async def test_it_is_asked_for_watched_and_read_without_a_reload(
    page: Page, http: httpx.AsyncClient, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    await add(http, "sql", adapter_folders[0])
    certify.held = asyncio.Event()
    await page.goto("/adapters/sql")
    await expect(card(page)).to_contain_text("has not been measured yet")
    await expect(card(page)).to_contain_text("loraplex certify sql@1")
    await press(page, "Certify")
    await expect(page.get_by_text("Certificate requested.")).to_be_visible()
    await expect(card(page)).to_contain_text("Measuring, 42 %")
    await expect(card(page).get_by_role("button")).to_have_count(0)
    certify.held.set()
    await expect(card(page).get_by_role("status")).to_have_text("Valid")
    rows = card(page).locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(0)).to_contain_text("Weights only")
    await expect(rows.nth(1)).to_contain_text("99.51 %")
    await expect(rows.nth(2)).to_contain_text("98.50 %")
    await expect(rows.nth(2)).to_contain_text("+0.0212")
    await expect(card(page)).to_contain_text("on 16 prompts with 512 tokens")
    await expect(card(page)).to_contain_text("Aliases can only point to versions with at least 98.00 %.")
    await expect(page.get_by_role("row", name="1 current")).to_contain_text("98.50 %")
    await expect(card(page).get_by_role("button", name="Certify again")).to_be_visible()


async def test_a_failure_is_told_in_words(
    page: Page, http: httpx.AsyncClient, certify: FakeCertify, adapter_folders: list[Path]
) -> None:
    await add(http, "sql", adapter_folders[0])
    certify.refusal = "the reference is <b>another</b> architecture"
    await page.goto("/adapters/sql")
    await press(page, "Certify")
    await expect(card(page).get_by_role("alert")).to_have_text(
        "The last measurement failed: the reference is <b>another</b> architecture"
    )
    certify.refusal = None
    await press(page, "Certify")
    await expect(card(page).get_by_role("status")).to_have_text("Valid")


async def test_what_changed_since_is_said(
    page: Page, http: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    await add(http, "sql", adapter_folders[0])
    await page.goto("/adapters/sql")
    await press(page, "Certify")
    await expect(card(page).get_by_role("status")).to_have_text("Valid")
    changed = state.settings.model_copy(update={"kv_cache_dtype": "fp8_e4m3"})
    info = state.engine.info
    assert info is not None
    state.served_path = ServedPath(changed, state.model_folder, lambda: Computing(info.arithmetic, info.runtime))
    await page.reload()
    await expect(card(page).get_by_role("status")).to_have_text("Out of date")
    await expect(card(page)).to_contain_text("what the KV cache stores (float32, now fp8_e4m3)")
    await expect(page.get_by_role("row", name="1 current")).to_contain_text("Out of date")


async def test_the_base_has_its_own_on_the_overview(page: Page, certify: FakeCertify) -> None:
    await page.goto("/")
    await press(page, "Certify")
    await expect(card(page).get_by_role("status")).to_have_text("Valid")
    await expect(card(page).get_by_role("heading")).to_have_text("Parity certificate of the base")
    assert certify.jobs[0].adapter is None


async def test_an_alias_moves_to_a_certified_version_only(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], watch: Watch
) -> None:
    watch.expected = ["409"]
    await add(http, "sql", adapter_folders[0])
    await page.goto("/adapters/sql")
    await page.get_by_label("Alias").fill("prod")
    await page.get_by_role("button", name="Add route").click()
    await expect(page.get_by_text("Version 1 of 'sql' has no valid parity certificate")).to_be_visible()
    await page.goto("/adapters/sql")
    await press(page, "Certify")
    await expect(card(page).get_by_role("status")).to_have_text("Valid")
    await page.get_by_label("Alias").fill("prod")
    await page.get_by_role("button", name="Add route").click()
    await expect(page.get_by_text("Route added.")).to_be_visible()
    await expect(page.get_by_role("row", name="1 current")).to_contain_text("@prod")
