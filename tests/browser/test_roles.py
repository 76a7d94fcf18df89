"""Who may only look: pages, live parts and keys lead nowhere forbidden, and nothing looks as if it were missing."""

import asyncio
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine
from tests.web.test_access import add_people
from tests.web.test_adapters_api import add

from .conftest import NewContext, listening
from .test_accessible import complaints

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PAGES = ("/", "/adapters", "/adapters/sql", "/cache", "/requests", "/usage")
LINKS = "[...document.querySelectorAll('a[href]')].map((one) => one.pathname + one.search)"
FORMS = "[...document.forms].map((one) => one.getAttribute('action')).filter(Boolean)"


@pytest.fixture
def viewed(state: State, engine: FakeEngine) -> None:
    """A viewer may log in, and the overview has something to say that stands on a page of the operator."""
    add_people(state)
    engine.restarts = 1


async def furnish(http: httpx.AsyncClient, folders: list[Path]) -> None:
    for folder in folders:
        await add(http, "sql", folder)
    schema = {"type": "object", "properties": {"sql": {"type": "string", "description": "one statement " * 12}}}
    profile = {"system_prompt": "Be brief.", "temperature": 0.3, "stop": [";"], "json_schema": schema}
    prod = {"version": 1, "weights": {"1": 90, "2": 10}}
    for path, body in (("profile", profile), ("aliases/prod", prod), ("aliases/prod/guard", {"max_error_rate": 0.02})):
        assert (await http.put(f"/api/v1/adapters/sql/{path}", json=body)).status_code == 200
    assert (await http.post("/api/v1/adapters/sql/load")).status_code == 200


async def test_what_a_viewers_pages_show_leads_somewhere(
    new_context: NewContext, http: httpx.AsyncClient, adapter_folders: list[Path], viewed: None
) -> None:
    await furnish(http, adapter_folders)
    page = await (await new_context("viewer")).new_page()
    links: set[str] = set()
    for path in PAGES:
        await page.goto(path)
        await listening(page)
        links.update(await page.evaluate(LINKS))
        assert set(await page.evaluate(FORMS)) <= {"/logout", path}, "a search at most"
    assert "/adapters/sql" in links
    assert [link for link in sorted(links) if (await page.request.get(link)).status != 200] == []


async def test_words_without_a_way_and_keys_without_a_page(new_context: NewContext, viewed: None) -> None:
    page = await (await new_context("viewer")).new_page()
    await page.goto("/")
    await listening(page)
    item = page.locator("#attention li")
    await expect(item).to_contain_text("restarted 1 time")
    await asyncio.sleep(1.5)  # the live document has drawn it again
    await expect(item).to_have_count(1)
    await expect(page.locator("#attention a")).to_have_count(0)
    await page.keyboard.type("gsgpguk")
    await page.keyboard.press("?")
    await expect(page.locator("#keys")).to_contain_text("adapters")
    await expect(page.locator("#keys")).not_to_contain_text("system")
    assert page.url.endswith("/"), "no key has led away"
    operator = await (await new_context()).new_page()
    await operator.goto("/")
    await listening(operator)
    await expect(operator.locator("#attention a")).to_have_attribute("href", "/system")


@pytest.mark.parametrize(("theme", "width"), [("light", 400), ("dark", 1280)])
async def test_a_viewers_pages_fit_and_are_accessible(
    new_context: NewContext, http: httpx.AsyncClient, adapter_folders: list[Path], viewed: None, theme: str, width: int
) -> None:
    await furnish(http, adapter_folders)
    context = await new_context(
        "viewer", color_scheme=theme, reduced_motion="reduce", viewport={"width": width, "height": 800}
    )
    page = await context.new_page()
    for path in PAGES:
        await page.goto(path)
        await listening(page)
        assert await page.evaluate("document.documentElement.scrollWidth") == width, path
        assert await complaints(page) == [], path
