"""Screenshots of every page in both themes, of a real server with the demo model under load: python -m docs.screenshots

Needs what the tests need, and Chromium. They are written to docs/images/.
"""

import asyncio
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
from playwright.async_api import Browser, FilePayload, Page, ViewportSize, async_playwright

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
ADAPTERS: Final = ROOT / "examples" / "demo" / "adapters"
PAGES: Final = {
    "login": "/login",
    "overview": "/",
    "adapters": "/adapters",
    "adapter": "/adapters/sql",
    "upload": "/upload",
    "cache": "/cache",
    "playground": "/playground",
    "requests": "/requests",
    "batches": "/batches",
    "usage": "/usage?by=key",
    "keys": "/keys",
    "key": "/keys/{key}",
    "users": "/users",
    "user": "/users/mia",
    "tenants": "/tenants",
    "tenant": "/tenants/default",
    "audit": "/audit",
    "audit-row": "/audit/{row}",
    "system": "/system",
    "account": "/account",
}
"""Name of the picture -> path. `{key}` is the prefix of a key, `{row}` a row of the audit log."""
WHOLE: Final = frozenset({"adapter", "cache", "playground", "upload", "usage"})
"""Pages whose best parts lie below the first screen: taken from top to bottom."""
KEYS: Final = {
    "support chat": {"Tokens per day": "100000", "Requests per minute": "600"},
    "nightly batch": {"Tokens per day": "1000000", "Concurrent requests": "8"},
}
"""Label -> limits."""
BATCHES: Final = 3
USERS: Final = {"mia": "editor", "noah": "viewer"}
PASSWORD, KEY = "correct horse battery", "lp-screenshots-0123456789"
SETTINGS: Final = {
    "ADMIN_PASSWORD": PASSWORD,
    "API_KEY": KEY,
    "MIN_FREE_BYTES": "0",
    "LOG_LEVEL": "warning",
    "ADAPTER_MEMORY": "1500000",
    "NUM_KV_BLOCKS": "600",
}
THEMES: Final = ("light", "dark")
SIZE: Final = ViewportSize(width=1120, height=720)
PROMPT: Final = "A driver called Lina paid 80 euros for 15 white kites in Paris."
WARM_SECONDS: Final = 45
REDRAW_SECONDS: Final = 2
PATIENCE: Final = 600.0


async def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is missing: apt install chromium")
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as address:
        async with httpx.AsyncClient(base_url=address, timeout=PATIENCE) as http, async_playwright() as playwright:
            await ready(http)
            browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            places, tokens = await furnish(browser, address)
            for number in range(BATCHES):
                await begin_batch(http, number)
            async with traffic(http, [KEY, *tokens]):
                await asyncio.sleep(WARM_SECONDS)
                for theme in THEMES:
                    await take_all(browser, address, theme, places)
            await browser.close()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The address of one with a small adapter memory, so that adapters come and go."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    values = SETTINGS | {"DATA_DIR": str(folder), "PORT": str(port)}
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


async def begin_batch(http: httpx.AsyncClient, number: int) -> None:
    """The first ends soon, with a line that is refused; the last one runs on."""
    key = {"authorization": f"Bearer {KEY}"}
    body = {"model": "demo", "prompt": PROMPT, "max_tokens": 40}
    lines = [{"custom_id": str(one), "method": "POST", "url": "/v1/completions"} for one in range(20 + 500 * number)]
    rows = [json.dumps(line | {"body": body | {"seed": one}}) for one, line in enumerate(lines)]
    rows[0] = rows[0].replace('"demo"', '"absent"')
    form = {"data": {"purpose": "batch"}, "files": {"file": ("requests.jsonl", "\n".join(rows).encode())}}
    file = (await http.post("/v1/files", headers=key, **form)).raise_for_status().json()
    new = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    (await http.post("/v1/batches", json=new, headers=key)).raise_for_status()


@asynccontextmanager
async def traffic(http: httpx.AsyncClient, tokens: Sequence[str]) -> AsyncIterator[None]:
    """Three clients that ask all models in turn, each time with the next key."""
    keys = [{"authorization": f"Bearer {token}"} for token in tokens]
    models = [model["id"] for model in (await http.get("/v1/models", headers=keys[0])).json()["data"]]

    async def ask(first: int) -> None:
        for number in itertools.count(first, 3):
            model, tokens = models[(number * number + number // 9) % len(models)], 40 + 30 * (number % 7)
            body = {"model": model, "prompt": f"{PROMPT} " * (1 + number % 4), "max_tokens": tokens, "ignore_eos": True}
            body |= {"seed": number, "temperature": 0.8}
            await http.post("/v1/completions", json=body, headers=keys[number % len(keys)])
            await asyncio.sleep(0.1 * (number % 5))

    tasks = [asyncio.create_task(ask(first)) for first in range(3)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def furnish(browser: Browser, address: str) -> tuple[dict[str, str], list[str]]:
    """A second version, keys, users and a tenant, made on their pages as a person does it.

    What stands for `{key}` and `{row}` in PAGES, and the keys' tokens.
    """
    page = await log_in(await open_page(browser, address, "light"))
    await second_version(page)
    tokens = []
    for label, limits in KEYS.items():
        await submit(page, "/keys", {"Label": label} | limits, "Create key")
        tokens.append(await page.locator("#token").inner_text())
    for name, role in USERS.items():
        await submit(page, "/users", {"Name": name}, "Create user", role)
    await submit(page, "/tenants", {"Name": "research", "Tokens per day": "2000000"}, "Create tenant")
    await page.goto("/audit")
    row = await page.locator("#audit-rows tbody a[href*='/audit/']").first.get_attribute("href")
    assert row is not None
    await page.context.close()
    return {"key": tokens[0].removeprefix("lp-").partition("_")[0], "row": row.rsplit("/")[-1]}, tokens


async def submit(page: Page, path: str, fields: dict[str, str], button: str, choice: str = "") -> None:
    await page.goto(path)
    for label, words in fields.items():
        await page.get_by_label(label, exact=True).fill(words)
    if choice:
        await page.locator(f'input[name="role"][value="{choice}"]').check()
    await page.get_by_role("button", name=button).click()
    await page.locator(".once, .notice[role=status]").first.wait_for()


async def second_version(page: Page) -> None:
    """The same weights with another alpha, so that the two differ in what their page tells."""
    config = json.loads((ADAPTERS / "sql" / "adapter_config.json").read_text())
    changed = json.dumps(config | {"lora_alpha": config["lora_alpha"] * 3 // 4}).encode()
    await page.goto("/upload?name=sql")
    files = page.locator("#files")
    await files.set_input_files(FilePayload(name="adapter_config.json", mimeType="application/json", buffer=changed))
    await files.set_input_files(ADAPTERS / "sql" / "adapter_model.safetensors")
    await page.get_by_role("button", name="Upload and check").click()
    await page.get_by_label("Everybody.").check()
    await page.get_by_role("button", name="Register sql").click()
    await page.get_by_text("is registered.").wait_for()


async def take_all(browser: Browser, address: str, theme: str, places: dict[str, str]) -> None:
    page = await open_page(browser, address, theme)
    for name, path in PAGES.items():
        await page.goto(path.format(**places))
        if name != "login":
            await page.locator('#live[data-live="yes"]').wait_for()
        await bring_to_life(page, name)
        await take(page, name, theme)
        if name == "login":
            await log_in(page)
    await page.context.close()


async def take(page: Page, name: str, theme: str) -> None:
    if name in WHOLE:
        height = await page.evaluate("document.documentElement.scrollHeight")
        await page.set_viewport_size(ViewportSize(width=SIZE["width"], height=height))
        await asyncio.sleep(REDRAW_SECONDS)
    await page.screenshot(path=IMAGES / f"{name}-{theme}.png")
    await page.set_viewport_size(SIZE)


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
    await asyncio.sleep(REDRAW_SECONDS)


async def open_page(browser: Browser, address: str, theme: str) -> Page:
    scheme = "dark" if theme == "dark" else "light"
    context = await browser.new_context(base_url=address, color_scheme=scheme, viewport=SIZE)
    context.set_default_timeout(1000 * PATIENCE)
    return await context.new_page()


async def log_in(page: Page) -> Page:
    await page.goto("/login")
    await page.get_by_label("User").fill("admin")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await page.locator("#live").wait_for()
    return page


if __name__ == "__main__":
    asyncio.run(main())
