"""Keys, users, tenants, usage and the audit log in a browser, as an admin uses them."""

import re

import httpx
import pytest
from playwright.async_api import Page, expect

from loraplex.web.state import State

from .conftest import NewContext, Watch, listening
from .test_overview import generate

LINES = """cell => {
    const words = document.createRange();
    words.selectNodeContents(cell);
    return words.getClientRects().length;
}"""
"""That a cell's words are broken into."""
pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def make_key(page: Page, label: str) -> str:
    """The token of a new key."""
    await page.goto("/keys")
    await page.get_by_label("Label").fill(label)
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_text(f"Key “{label}” created")).to_be_visible()
    return await page.locator("#token").inner_text()


async def status_with(http: httpx.AsyncClient, token: str) -> int:
    return (await http.get("/v1/models", headers={"authorization": f"Bearer {token}"})).status_code


async def test_a_key_is_made_copied_shown_once_and_revoked(page: Page, http: httpx.AsyncClient, state: State) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    token = await make_key(page, "billing")
    await page.locator(".once").get_by_role("button", name="Copy").first.click()
    await expect(page.locator(".once").get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == token
    assert await status_with(http, token) == 200
    count = len(state.registry.keys.list())
    await page.reload()
    await expect(page.get_by_role("link", name="billing")).to_be_visible()
    await expect(page.locator("#token")).to_have_count(0)
    assert len(state.registry.keys.list()) == count
    await page.get_by_role("button", name="Revoke billing").click()
    asked = page.get_by_role("dialog")
    await expect(asked).to_contain_text("Revoke “billing”?")
    await asked.get_by_role("button", name="Cancel").click()
    assert await status_with(http, token) == 200
    await page.get_by_role("button", name="Revoke billing").click()
    await asked.get_by_role("button", name="Revoke key").click()
    await expect(page.get_by_text("refused with 401")).to_be_visible()
    await expect(page.get_by_role("link", name="billing")).to_have_count(0)
    assert await status_with(http, token) == 401


async def test_a_wrong_limit_is_said_beside_its_field(page: Page, watch: Watch) -> None:
    watch.expected = ["400"]
    await page.goto("/keys")
    await page.get_by_label("Label").fill("billing")
    await page.get_by_label("Tokens per day").fill("lots")
    await page.get_by_label("Expires", exact=True).select_option("On a date…")
    await page.get_by_label("Expiry date").fill("2099-01-31")
    await page.get_by_role("button", name="Create key").click()
    wrong = page.get_by_label("Tokens per day")
    await expect(wrong).to_be_focused()
    await expect(wrong).to_have_accessible_description(
        "Enter a whole number of at least 1, or leave blank for no limit."
    )
    await expect(page.get_by_label("Label")).to_have_value("billing")
    await expect(page.get_by_label("Expiry date")).to_have_value("2099-01-31")
    await wrong.fill("5000")
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_text("0 of 5,000 tokens")).to_be_visible()


async def test_a_user_is_invited_logs_in_and_sees_what_the_role_allows(
    page: Page, new_context: NewContext, watch: Watch
) -> None:
    watch.expected = ["401"]  # what the page of who was removed may still poll
    await page.goto("/users")
    await page.get_by_label("Name").fill("vera")
    await page.get_by_role("button", name="Create user").click()
    password = await page.locator("#password-once").inner_text()
    context = await new_context()
    await context.clear_cookies()
    other = await context.new_page()
    await other.goto("/usage")
    await other.get_by_label("User").fill("vera")
    await other.get_by_label("Password").fill(password)
    await other.get_by_role("button", name="Log in").click()
    await expect(other.get_by_role("heading", level=1)).to_have_text("Usage")
    menu = other.get_by_role("navigation", name="Main")
    await expect(menu.get_by_role("link", name="Requests")).to_be_visible()
    for hidden in ("Keys", "Users", "Tenants", "Audit log", "System"):
        await expect(menu.get_by_role("link", name=hidden)).to_have_count(0)
    await listening(other)
    await other.keyboard.type("gk")
    await other.keyboard.type("gr")
    await expect(other).to_have_url(re.compile("/requests$"))
    await page.get_by_role("button", name="Remove vera").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove user").click()
    await expect(page.get_by_text("logged out everywhere")).to_be_visible()
    await other.goto("/usage")
    await expect(other.get_by_role("button", name="Log in")).to_be_visible()


async def test_a_tenant_is_made_and_its_first_admin_logs_in(page: Page) -> None:
    await page.goto("/tenants")
    await page.get_by_label("Name", exact=True).fill("acme")
    await page.get_by_role("button", name="Create tenant").click()
    await page.get_by_role("link", name="Create its first user").click()
    await expect(page.get_by_text("Viewing tenant acme")).to_be_visible()
    await page.get_by_label("Name", exact=True).fill("root")
    await page.get_by_label("admin", exact=False).check()
    await page.get_by_role("button", name="Create user").click()
    await expect(page.locator(".once")).to_contain_text("acme/root")
    await page.get_by_role("link", name="Open its page").click()
    await page.get_by_role("button", name="Disable").click()
    await page.get_by_role("dialog").get_by_role("button", name="Disable tenant").click()
    await expect(page.get_by_text("no longer work, and its adapters are unloaded")).to_be_visible()
    await page.get_by_role("button", name="Enable").click()
    await expect(page.get_by_text("work again")).to_be_visible()


async def test_usage_is_drawn_told_in_tables_and_narrowed(page: Page, http: httpx.AsyncClient, state: State) -> None:
    await generate(http, "tiny", 5)
    state.bookkeeper._ledger.flush()
    await page.goto("/usage")
    await expect(page.locator("#tokens-chart canvas")).to_be_visible()
    values = page.locator("#requests-chart-values")
    await values.locator("summary").click()
    await expect(values.locator("tbody tr")).to_have_count(30)
    await expect(values.locator("tbody tr").first).to_contain_text("1")
    await page.get_by_label("Group by").select_option("By day")
    await expect(page.locator("#sums-heading")).to_have_text("By day")
    await expect(page.locator("#tokens-chart canvas")).to_be_visible()
    await expect(page).to_have_url(re.compile("by=day"))
    await page.get_by_role("button", name="Theme").click()
    await expect(page.locator("#tokens-chart canvas")).to_be_visible()
    async with page.expect_download() as started:
        await page.get_by_role("link", name="Download CSV").click()
    text = (await (await started.value).path()).read_text()
    assert text.startswith("tenant,from,to,day,requests,errors,")
    await page.get_by_label("Adapter", exact=True).fill("none of this name")
    await page.get_by_label("Adapter", exact=True).press("Enter")
    await expect(page.get_by_role("heading", name="No usage")).to_be_visible()


@pytest.mark.parametrize("width", [400, 1280])
async def test_no_sum_is_cut_off_and_no_key_broken_in_two(
    new_context: NewContext, http: httpx.AsyncClient, state: State, width: int
) -> None:
    await http.post("/api/v1/keys", json={"name": "ci"})
    await generate(http, "tiny", 5)
    state.bookkeeper._ledger.flush()
    page = await (await new_context(viewport={"width": width, "height": 800})).new_page()
    await page.goto("/usage?by=key")
    sums = page.get_by_role("region", name="Usage", exact=True)
    await expect(sums.locator("tbody tr")).to_have_count(1)
    assert await sums.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    await page.goto("/audit?action=key.create&actor=key")
    who = page.locator("#audit-rows tbody td:nth-child(2) small", has_text="key:").first
    await expect(who).to_have_text(re.compile("key:[0-9a-f]{12}"))
    assert await who.evaluate(LINES) == 1


async def test_the_audit_log_is_verified_and_searched(page: Page) -> None:
    await make_key(page, "billing")
    await page.goto("/audit")
    await expect(page.get_by_text("✓ Intact")).to_be_visible()
    rows = page.locator("#audit-rows tbody tr")
    await page.get_by_label("Action").fill("set_pass")
    await expect(rows).to_have_count(1)
    await page.get_by_label("Action").fill("key.create")
    await expect(rows.first).to_contain_text("key.create")
    await expect(rows.first).to_contain_text("user:admin")
    await rows.first.get_by_role("link", name="Row").click()
    await expect(page.locator("main pre")).to_contain_text('"name": "billing"')
    await page.get_by_role("link", name="Open page").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("billing")


async def test_a_request_that_is_not_kept_is_explained(page: Page) -> None:
    await page.goto("/requests")
    await page.get_by_label("Search requests").fill("req-of-last-year")
    await expect(page.get_by_text("It is too old")).to_be_visible()
