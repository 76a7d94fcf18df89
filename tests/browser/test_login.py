import re

import pytest
from playwright.async_api import BrowserContext, Page, expect

from tests.web.conftest import ADMIN_PASSWORD

from .conftest import NewContext, Watch

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def stranger(new_context: NewContext) -> Page:
    context: BrowserContext = await new_context()
    await context.clear_cookies()
    return await context.new_page()


async def submit(page: Page, password: str) -> None:
    await page.get_by_label("User").fill("admin")
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()


async def test_a_wrong_password_is_refused_in_words(new_context: NewContext, watch: Watch) -> None:
    watch.expected = ["401"]
    page = await stranger(new_context)
    await page.goto("/login")
    await submit(page, "wrong")
    await expect(page.get_by_role("alert")).to_have_text("Wrong user or password.")
    await expect(page.get_by_label("User")).to_have_value("admin")


async def test_the_login_leads_to_the_page_that_was_asked_for_and_the_logout_ends_it(new_context: NewContext) -> None:
    page = await stranger(new_context)
    await page.goto("/adapters?search=sql")
    await expect(page).to_have_url(re.compile("/login"))
    await submit(page, ADMIN_PASSWORD)
    await expect(page).to_have_url(re.compile(r"/adapters\?search=sql$"))
    await page.get_by_role("button", name="Log out").click()
    await expect(page).to_have_url(re.compile("/login$"))
    await page.goto("/")
    await expect(page).to_have_url(re.compile("/login"))


async def test_a_session_that_ended_leads_to_the_login(new_context: NewContext, watch: Watch) -> None:
    watch.expected = ["401"]
    context = await new_context()
    page = await context.new_page()
    await page.goto("/adapters")
    await context.clear_cookies()
    await page.get_by_role("link", name="Overview").click()
    await expect(page).to_have_url(re.compile("/login"))
