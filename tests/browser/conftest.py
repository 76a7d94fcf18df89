"""A headless Chromium before a real server around the fake engine. Whatever a page complains about fails its test."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Route,
    async_playwright,
    expect,
)

from loraplex.web.access.sessions import COOKIE
from loraplex.web.server import Server
from loraplex.web.state import State
from tests.integration.live_server import free_port
from tests.web.conftest import (
    ADMIN_PASSWORD,
    adapter_folders,
    admin,
    certify,
    checkpoint,
    engine,
    first_data,
    quick_passwords,
    routes_read_once,
    settings,
    state,
    statements_written_once,
)

__all__ = [
    "adapter_folders",
    "admin",
    "certify",
    "checkpoint",
    "engine",
    "first_data",
    "quick_passwords",
    "routes_read_once",
    "settings",
    "state",
    "statements_written_once",
]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MILLISECONDS = 20_000
"""How long a page may take on a busy machine."""
expect.set_options(timeout=MILLISECONDS)
NewContext = Callable[..., Awaitable[BrowserContext]]
Hold = Callable[[Route], None]


async def listening(page: Page) -> None:
    """Wait until the page's scripts hear keys and clicks."""
    await expect(page.locator("#live")).to_have_text("live")


async def confirmed(page: Page, button: Locator) -> None:
    """Press a button that asks first, and say yes."""
    await listening(page)
    await button.click()
    await page.locator("#confirm-yes").click()


@dataclass
class Watch:
    """What pages complained about: script errors, refused content (CSP), and requests that left this host."""

    complaints: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    """Parts of complaints that the test provokes."""

    def follow(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.on("request", self._on_request)

    def check(self) -> None:
        assert [text for text in self.complaints if not any(part in text for part in self.expected)] == []

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"console {message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        if urlsplit(request.url).hostname != "127.0.0.1" and not request.url.startswith(("data:", "blob:")):
            self.complaints.append(f"left this host: {request.url}")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: apt install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def address(state: State) -> AsyncIterator[str]:
    """Of the running server."""
    state.settings = state.settings.model_copy(update={"port": free_port()})
    server = Server(state)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        while not server.started or not state.started.is_set():
            await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{state.settings.port}"
    server.should_exit = True
    state.stopping.set()
    await asyncio.wait_for(task, 60)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest_asyncio.fixture(loop_scope="session")
async def new_context(browser: Browser, address: str, state: State, watch: Watch) -> AsyncIterator[NewContext]:
    """Makes browser contexts that are logged in, as the admin or another; checks at the end that no page complained."""
    made: list[BrowserContext] = []

    async def make(login: str = "admin", **options: Any) -> BrowserContext:
        cookie = await asyncio.to_thread(state.sessions.log_in, login, ADMIN_PASSWORD, "127.0.0.1")
        assert cookie is not None
        context = await browser.new_context(base_url=address, **options)
        context.set_default_timeout(MILLISECONDS)
        context.on("page", watch.follow)
        await context.add_cookies([{"name": COOKIE, "value": cookie, "url": address}])
        made.append(context)
        return context

    yield make
    for context in made:
        await context.close()
    watch.check()


@pytest_asyncio.fixture(loop_scope="session")
async def page(new_context: NewContext) -> Page:
    return await (await new_context()).new_page()


@pytest_asyncio.fixture(loop_scope="session")
async def hold(new_context: NewContext) -> AsyncIterator[Hold]:
    """Leaves requests without an answer while the test runs; playwright's tasks that never end are logged later."""
    held: list[Route] = []
    yield lambda route: held.append(route)
    for route in held:
        await route.abort()


@pytest_asyncio.fixture(loop_scope="session")
async def http(address: str, admin: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """Another client of the same server, with an administrator's key."""
    async with httpx.AsyncClient(base_url=address, headers=admin, timeout=120) as client:
        yield client
