"""What an operator does every day, in how many clicks."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine, sentence_of
from tests.web.test_dashboard_figures import finished

from .clicks import Clicks
from .conftest import listening

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(autouse=True)
def tenants(state: State) -> None:
    for name in ("acme", "rival"):
        state.registry.tenants.create(name, actor="system")
    state.registry.snapshots.refresh()


async def switch_to(page: Page, person: Clicks, tenant: str) -> None:
    await person.choose(page.get_by_label("Tenant", exact=True), tenant)
    await expect(page.get_by_text(f"Viewing tenant {tenant}")).to_be_visible()


async def test_an_adapter_is_uploaded_for_a_customer_and_handed_over(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, state: State, adapter_folders: list[Path]
) -> None:
    """The customer's key works, for this model alone, and the page has code for it."""
    await page.goto("/")
    await listening(page)
    person = Clicks()
    await switch_to(page, person, "acme")
    await person.press(page.get_by_role("link", name="Adapters", exact=True))
    await person.press(page.get_by_role("link", name=re.compile("^Upload")).first)
    await listening(page)
    await expect(page.get_by_label("Name (clients send it as")).to_be_focused()
    await page.keyboard.type("support")
    files = [adapter_folders[0] / file for file in (CONFIG_FILE, WEIGHTS_FILE)]
    await person.choose_files(page.locator("#files"), files)
    await person.press(page.get_by_role("button", name="Upload and check"))
    await person.press(page.get_by_role("button", name="Register support"))
    await person.press(page.get_by_role("button", name="Create a key for support"))
    await expect(page.get_by_role("heading", name="Key “support client” created")).to_be_visible()
    await expect(page.get_by_text("Viewing tenant acme")).to_be_visible()
    assert person.count <= 8

    token = await page.locator("#token").inner_text()
    code = await page.locator("#snippet-1").inner_text()
    assert f"export LORAPLEX_KEY={token}" in code and '"model": "support"' in code and "tenant" not in code
    [digest] = engine.registered
    customer, asked = {"authorization": f"Bearer {token}"}, {"model": "support", "prompt": "a", "max_tokens": 64}
    answer = await http.post("/v1/completions", json=asked, headers=customer)
    assert answer.json()["choices"][0]["text"] == sentence_of(digest)
    assert [one["id"] for one in (await http.get("/v1/models", headers=customer)).json()["data"]] == ["support"]
    rows = await asyncio.to_thread(state.registry.audit.entries, 10, None, "acme")
    assert {row.actor for row in rows} == {"default/user:admin", "system"}


async def test_the_slowest_failed_request_of_a_tenant(page: Page, state: State) -> None:
    for number, (tenant, status, duration) in enumerate(
        [
            ("acme", "stop", 90.0),
            ("acme", "error", 2.0),
            ("acme", "error", 40.0),
            ("rival", "error", 70.0),
            ("acme", "refused", 80.0),
        ]
    ):
        told = {"request_id": f"req-{number}", "tenant": tenant, "status": status, "duration": duration}
        state.metrics.log.add(finished(float(number), reason="The step failed.", **told))
    await page.goto("/")
    await listening(page)
    person = Clicks()
    await person.press(page.get_by_role("link", name="Requests", exact=True))
    await listening(page)
    rows = page.locator("#request-rows tbody tr")
    await expect(rows).to_have_count(5)
    await person.press(page.get_by_text("Failed", exact=True))
    await expect(rows).to_have_count(3)
    await person.press(page.get_by_role("link", name="Duration"))
    await expect(rows.first).to_contain_text("req-3")
    await person.press(rows.get_by_role("link", name="acme").first)
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("req-2")
    await expect(rows.first).to_contain_text("The step failed.")
    await expect(page.get_by_text("Viewing tenant acme")).to_be_visible()
    assert person.count <= 5
    await asyncio.sleep(2.5)
    await expect(rows.first).to_contain_text("req-2")
