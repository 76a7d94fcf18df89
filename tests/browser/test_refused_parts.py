"""A part of a page whose poll or click is refused stays as it is, and what somebody asked for says why in words."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, Route, expect

from tests.web.test_adapters_api import add

from .conftest import Watch, listening

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

STOPPING = {"status": 503, "json": {"error": {"message": "The server is stopping. Try again in a moment."}}}
GATEWAY = {"status": 502, "content_type": "text/html", "body": "<h1>Bad gateway</h1>"}
ANSWERS: tuple[dict[str, Any], ...] = (STOPPING, GATEWAY, {"status": 404, "json": {"error": {"message": "Gone."}}})


def refusing(answer: dict[str, Any] | None) -> Callable[[Route], Awaitable[None]]:
    """None: the connection breaks."""

    async def refuse(route: Route) -> None:
        await (route.abort() if answer is None else route.fulfill(**answer))

    return refuse


async def test_a_server_that_is_away_for_a_moment_takes_nothing_off_a_page(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], watch: Watch
) -> None:
    watch.expected = ["503", "502", "404"]
    await add(http, "sql", adapter_folders[0])
    await page.goto("/cache")
    await listening(page)
    polls = 0

    async def refuse(route: Route) -> None:
        nonlocal polls
        polls += 1
        await route.fulfill(**ANSWERS[polls % len(ANSWERS)])

    await page.route("**/cache", refuse)
    async with asyncio.timeout(60):
        while polls < 2 * len(ANSWERS):
            await asyncio.sleep(0.1)
    mine = page.get_by_role("row").filter(has=page.get_by_role("link", name="sql", exact=True))
    await expect(mine).to_contain_text("Ready · on disk")
    await expect(page.locator("main")).not_to_contain_text("Bad gateway")
    await expect(page.locator("#trouble")).to_be_hidden()
    await page.unroute("**/cache")
    assert (await http.post("/api/v1/adapters/sql/load")).status_code == 200
    await expect(mine).to_contain_text("Ready · in memory")


async def test_what_is_clicked_and_refused_is_said(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], watch: Watch
) -> None:
    watch.expected = ["503", "502", "ERR_", "Failed to fetch", "TypeError"]
    for folder in adapter_folders:
        await add(http, "sql", folder)
    await page.goto("/adapters/sql")
    await listening(page)
    trouble, compare = page.get_by_role("alert"), page.get_by_role("button", name="Diff")
    for answer, words in (
        (STOPPING, "The server is stopping."),
        (GATEWAY, "The server answered 502."),
        (None, "The server cannot be reached."),
    ):
        await page.route("**/diff?*", refusing(answer))
        await compare.click()
        await expect(trouble).to_contain_text(words)
        await expect(page.locator("#diff")).to_be_empty()
        await page.unroute("**/diff?*")
    await compare.click()
    await expect(page.locator("#diff")).to_contain_text("Changes from version 1 to version 2")
    await expect(trouble).to_be_hidden()
