"""Everybody can use it: axe-core finds nothing serious on any page, and a keyboard alone is enough."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from loraplex.registry.access.scopes import VIEWER_ROLE
from loraplex.web.access.sessions import COOKIE
from loraplex.web.state import State
from tests.web.conftest import ADMIN_PASSWORD
from tests.web.fake_engine import FakeEngine
from tests.web.test_adapters_api import add

from .conftest import NewContext, Watch, listening
from .test_overview import generate

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

AXE = Path(__file__).parents[2] / "platform/web/frontend/node_modules/axe-core/axe.min.js"
PAGES = (
    *("/", "/adapters", "/adapters/sql", "/upload", "/cache", "/playground", "/requests", "/system", "/adapters/no"),
    *("/batches", "/usage", "/keys", "/users", "/users/admin", "/tenants", "/tenants/default", "/audit", "/audit/1"),
    *("/keys/0123456789ab", "/requests?search=none", "/account"),
)
EMPTY = {
    "/adapters": "No adapters yet",
    "/cache": "No adapters registered",
    "/requests": "No requests yet",
    "/batches": "No batches yet",
    "/usage": "No usage in these",
    "/keys?tenant=acme": "No keys yet",
    "/users?tenant=acme": "No users yet",
    "/tenants/acme": "Nobody can log in yet",
    "/users/admin": "The only admin of this tenant",
    "/nowhere": "There is no page at /nowhere",
}
"""Pages before anything has happened, and what each says then."""
WIDTH = 400
RUN = "axe.run(document, { resultTypes: ['violations'] })"


async def complaints(page: Page) -> list[str]:
    """What axe-core calls serious or critical, with the place."""
    assert AXE.is_file(), "axe-core is missing: run platform/web/frontend/install.py"
    await page.evaluate(AXE.read_text())
    found = (await page.evaluate(RUN))["violations"]
    grave = [one for one in found if one["impact"] in ("serious", "critical")]
    return [f"{one['id']}: {json.dumps(node['target'])} {node['html'][:120]}" for one in grave for node in one["nodes"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious(
    new_context: NewContext,
    http: httpx.AsyncClient,
    engine: FakeEngine,
    adapter_folders: list[Path],
    watch: Watch,
    theme: str,
) -> None:
    watch.expected = ["404"]
    for folder in adapter_folders:
        await add(http, "sql", folder)
    await http.put("/api/v1/adapters/sql/aliases/prod", json={"version": 1})
    await http.post("/api/v1/adapters/sql/load")
    await generate(http, "sql", 5)
    engine.restarts = 1
    page = await (await new_context(color_scheme=theme, reduced_motion="reduce")).new_page()
    for path in PAGES:
        await page.goto(path)
        await listening(page)
        if path == "/playground":
            await page.get_by_role("button", name="Run").click()
            await expect(page.locator("#tokens")).to_be_visible()
        await page.evaluate("document.querySelectorAll('main details').forEach((one) => (one.open = true))")
        assert await complaints(page) == [], path


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_empty_pages_the_login_and_refusals_are_for_everybody_too(
    new_context: NewContext, address: str, http: httpx.AsyncClient, state: State, watch: Watch, theme: str
) -> None:
    """In a window as narrow as a telephone, where nothing scrolls sideways either."""
    watch.expected = ["401", "403", "404"]
    assert (await http.post("/api/v1/tenants", json={"name": "acme"})).status_code == 201
    context = await new_context(color_scheme=theme, viewport={"width": WIDTH, "height": 800})
    page = await context.new_page()
    key = (await asyncio.to_thread(state.registry.keys.list))[0]
    for path, words in (EMPTY | {f"/keys/{key.prefix}": key.name}).items():
        await page.goto(path)
        await is_for_everybody(page, words)

    await asyncio.to_thread(state.registry.users.create, "vera", ADMIN_PASSWORD, VIEWER_ROLE, actor="system")
    cookie = await asyncio.to_thread(state.sessions.log_in, "vera", ADMIN_PASSWORD, "127.0.0.1")
    assert cookie is not None
    await context.add_cookies([{"name": COOKIE, "value": cookie, "url": address}])
    await page.goto("/keys")
    await is_for_everybody(page, "Your role 'viewer' does not allow that.")

    await context.clear_cookies()
    await page.goto("/adapters")
    await is_for_everybody(page, "Password")
    await page.get_by_label("User").fill("admin")
    await page.get_by_label("Password").fill("wrong")
    await page.get_by_role("button", name="Log in").click()
    await is_for_everybody(page, "Wrong user or password.")


async def is_for_everybody(page: Page, words: str) -> None:
    """A page with these words, on which axe-core finds nothing serious and which is no wider than its window."""
    await expect(page.locator("main")).to_contain_text(words)
    assert await page.evaluate("document.documentElement.scrollWidth") == WIDTH, page.url
    assert await complaints(page) == [], page.url


async def test_a_keyboard_is_enough(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    """Find an adapter, load it, pin it, look at its tensors, and try it; nothing is clicked."""
    for name, folder in zip(("json", "sql"), adapter_folders, strict=True):
        await add(http, name, folder)
    await page.goto("/")
    await listening(page)
    await page.keyboard.type("ga")
    await expect(page).to_have_url(re.compile("/adapters$"))
    await listening(page)
    await page.keyboard.type("/sq")
    await expect(page.get_by_text("1 adapter matching")).to_be_visible()
    await tab_to(page, "sql")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("sql")
    await tab_to(page, "Load now")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("Loaded into memory.")).to_be_visible()
    await tab_to(page, "Pin")
    await page.keyboard.press("Space")
    await expect(page.get_by_text("Pinned. It stays in memory.")).to_be_visible()
    await tab_to(page, "Show tensors of version 1")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name="All tensors")).to_contain_text("lora_A")
    await listening(page)
    await page.keyboard.type("gp")
    await expect(page.get_by_label("Message")).to_be_visible()
    await listening(page)
    await page.keyboard.type("?")
    await expect(page.get_by_role("dialog")).to_contain_text("g a")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await expect(page.get_by_role("button", name="Run")).to_be_enabled()
    await tab_to(page, "Run")
    await page.keyboard.press("Enter")
    await expect(page.locator(".pane footer").first).to_contain_text("tokens/s")


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the control of this name has the focus, which must be visible."""
    focused = "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()"
    for _ in range(80):
        await page.keyboard.press("Tab")
        if await page.evaluate(focused) == name:
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert await page.evaluate(outline) != "none", name
            return
    raise AssertionError(f"Tab does not lead to {name}")
