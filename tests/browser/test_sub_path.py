"""The whole way under a sub-path, as behind a proxy that serves several things."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvicorn
from playwright.async_api import Browser, Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from loraplex.web.app import create_app
from loraplex.web.state import State
from tests.integration.live_server import free_port
from tests.web.conftest import ADMIN_PASSWORD
from tests.web.fake_engine import BASE_SENTENCE

from .conftest import Watch, listening
from .test_upload import drop_folder, register

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ROOT = "/tools/lora"


@pytest_asyncio.fixture(loop_scope="session")
async def origin(state: State) -> AsyncIterator[str]:
    """Of a server that has nothing at its root and the app under ROOT."""
    app, port = create_app(state), free_port()
    outer = Starlette(routes=[Mount(ROOT, app)])
    server = uvicorn.Server(uvicorn.Config(outer, host="127.0.0.1", port=port, log_config=None, lifespan="off"))
    async with app.router.lifespan_context(app):
        task = asyncio.create_task(server.serve())
        async with asyncio.timeout(60):
            while not server.started or not state.started.is_set():
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
        state.stopping.set()
        server.should_exit = True
        await asyncio.wait_for(task, 60)


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, origin: str, watch: Watch) -> AsyncIterator[Page]:
    page = await browser.new_page(base_url=origin)
    watch.follow(page)
    yield page
    await page.close()
    watch.check()


async def test_everything_works_under_a_sub_path(page: Page, origin: str, adapter_folders: list[Path]) -> None:
    await page.goto(f"{ROOT}/upload?name=sql")
    await expect(page).to_have_url(f"{origin}{ROOT}/login?next=/upload%3Fname%3Dsql")
    await page.get_by_label("User").fill("admin")
    await page.get_by_label("Password").fill(ADMIN_PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page).to_have_url(f"{origin}{ROOT}/upload?name=sql")
    await drop_folder(page, adapter_folders[0])
    await register(page, "sql")
    await page.get_by_role("link", name="Open its page").click()
    await expect(page.locator("#snippet-1")).to_contain_text(f"curl {origin}{ROOT}/v1/chat/completions")
    await page.get_by_role("button", name="Load now").click()
    await expect(page.get_by_text("Ready · in memory")).to_be_visible()
    await listening(page)
    await page.keyboard.type("ga")
    await page.get_by_label("Search adapters").fill("sq")
    await expect(page.get_by_text("1 adapter matching")).to_be_visible()
    await page.get_by_role("link", name="Cache").click()
    await page.get_by_role("button", name="Evict").click()
    await expect(page).to_have_url(f"{origin}{ROOT}/cache?done=evict")
    await expect(page.locator("#next-out")).to_have_text("Adapters load on their first request")
    await page.get_by_role("button", name="Load").click()
    await expect(page.locator("#next-out")).to_contain_text("Next to be evicted: sql")
    await page.get_by_role("link", name="Playground").click()
    await page.wait_for_url("**/playground")
    await listening(page)
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane output").first).to_have_text(BASE_SENTENCE)
    await page.get_by_role("link", name="Overview").click()
    await expect(page.locator(".tile")).to_have_attribute("href", f"{ROOT}/adapters/sql")
