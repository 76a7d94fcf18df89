"""Screenshots of every page in both themes, of a real server with the demo model under load: python -m docs.screenshots

Needs what the tests need, and Chromium. They are written to docs/images/.
"""

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
from playwright.async_api import Browser, Page, async_playwright

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
ADAPTERS: Final = ROOT / "examples" / "demo" / "adapters"
PAGES: Final = {
    "overview": "/",
    "adapters": "/adapters",
    "adapter": "/adapters/sql",
    "upload": "/upload",
    "cache": "/cache",
    "playground": "/playground",
    "requests": "/requests",
    "usage": "/usage?by=key",
    "keys": "/keys",
    "users": "/users",
    "tenants": "/tenants",
    "audit": "/audit",
    "system": "/system",
}
PASSWORD, KEY = "correct horse battery", "lp-screenshots-0123456789"
SETTINGS: Final = {
    "ADMIN_PASSWORD": PASSWORD,
    "API_KEY": KEY,
    "MIN_FREE_BYTES": "0",
    "LOG_LEVEL": "warning",
    "ADAPTER_MEMORY": "1500000",
    "NUM_KV_BLOCKS": "600",
}
SIZE: Final = {"width": 1120, "height": 720}
PROMPT: Final = "A driver called Lina paid 80 euros for 15 white kites in Paris."
WARM_SECONDS: Final = 45
PATIENCE: Final = 600.0


async def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is missing: apt install chromium")
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as address:
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as http, async_playwright() as playwright:
            await ready(http)
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            async with traffic(http):
                await second_version(browser, address)
                await asyncio.sleep(WARM_SECONDS)
                for theme in ("light", "dark"):
                    await take_all(browser, address, theme)
            await browser.close()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of one with a small adapter memory, so that adapters come and go."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = SETTINGS | {
        "DATA_DIR": str(folder),
        "PORT": str(port),
        "ADAPTER_MEMORY": "1500000",
        "NUM_KV_BLOCKS": "600",
    }
    environment = os.environ | {f"LORAPLEX_{name}": value for name, value in values.items()}
    process = subprocess.Popen([sys.executable, "-m", "loraplex", "serve"], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


async def ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(httpx.TransportError):
                if (await http.get("/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.5)


@asynccontextmanager
async def traffic(http: httpx.AsyncClient) -> AsyncIterator[None]:
    headers = {"authorization": f"Bearer {KEY}"}
    models = [model["id"] for model in (await http.get("/v1/models", headers=headers)).json()["data"]]

    async def ask(first: int) -> None:
        for number in itertools.count(first, 3):
            model, tokens = models[number * number % len(models)], 40 + 30 * (number % 7)
            body = {"model": model, "prompt": f"{PROMPT} " * (1 + number % 4), "max_tokens": tokens, "ignore_eos": True}
            await http.post("/v1/completions", json=body | {"seed": number, "temperature": 0.8}, headers=headers)
            await asyncio.sleep(0.1 * (number % 5))

    tasks = [asyncio.create_task(ask(first)) for first in range(3)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def second_version(browser: Browser, address: str) -> None:
    """By the upload page, as a person does it."""
    page = await log_in(browser, address, "light")
    await page.goto("/upload?name=sql")
    for file in (ADAPTERS / "json").iterdir():
        await page.locator("#files").set_input_files(file)
    await page.get_by_role("button", name="Upload and check").click()
    await page.get_by_role("button", name="Register sql").click()
    await page.get_by_text("is registered and served").wait_for()
    await page.context.close()


async def take_all(browser: Browser, address: str, theme: str) -> None:
    page = await log_in(browser, address, theme)
    for name, path in PAGES.items():
        await page.goto(path)
        await page.locator('#live[data-live="yes"]').wait_for()
        await bring_to_life(page, name)
        await page.screenshot(path=IMAGES / f"{name}-{theme}.png")
    await page.context.close()


async def bring_to_life(page: Page, name: str) -> None:
    if name == "upload":
        await page.locator("#name").fill("sql")
        for file in (ADAPTERS / "sql").iterdir():
            await page.locator("#files").set_input_files(file)
        await page.get_by_role("button", name="Upload and check").click()
        await page.get_by_role("button", name="Register sql").wait_for()
    if name == "playground":
        await page.get_by_role("button", name="Run").click()
        await page.locator("#stop:disabled").wait_for()
    await asyncio.sleep(2)


async def log_in(browser: Browser, address: str, theme: str) -> Page:
    scheme = "dark" if theme == "dark" else "light"
    context = await browser.new_context(base_url=address, color_scheme=scheme, viewport=SIZE)
    context.set_default_timeout(1000 * PATIENCE)
    page = await context.new_page()
    await page.goto("/login")
    await page.get_by_label("User").fill("admin")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await page.locator("#live").wait_for()
    return page


if __name__ == "__main__":
    asyncio.run(main())
