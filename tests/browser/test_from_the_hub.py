"""An adapter of the hub by the upload page: from its id and commit to an answer by its name."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.state import State
from tests.web.fake_engine import FakeEngine, sentence_of
from tests.web.fake_hub import COMMIT, REPOSITORY, FakeHub

from .conftest import Watch

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def hub(adapter_folders: list[Path], state: State, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """It has one adapter, and the operator allows it."""
    state.settings = state.settings.model_copy(update={"adapter_hub": True})
    with FakeHub({name: (adapter_folders[0] / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


async def fetch(page: Page, source: str) -> None:
    await page.get_by_label("Hugging Face Hub").check()
    await page.get_by_label("Repository and commit").fill(source)
    await page.get_by_role("button", name="Upload and check").click()


async def test_an_id_at_a_commit_becomes_an_adapter(
    hub: FakeHub, page: Page, http: httpx.AsyncClient, engine: FakeEngine, state: State, watch: Watch
) -> None:
    await page.goto("/upload")
    await page.get_by_label("Name (clients send it").fill("sql")
    report = page.get_by_role("region", name="Result")

    await fetch(page, f"{REPOSITORY}@main")
    await expect(report).to_contain_text(f"Load {REPOSITORY}@<commit>, 40 hex digits")
    assert hub.asked == [], "what may change under its name is not even asked for"

    await fetch(page, f"{REPOSITORY}@{COMMIT}")
    await expect(report).to_contain_text("Checks passed. Ready to register.")
    await expect(report.locator(".tag", has_text="pass").first).to_be_visible()
    await expect(report.locator(".tag", has_text="fail")).to_have_count(0)
    assert {file for method, file in hub.asked if method == "GET"} == {CONFIG_FILE, WEIGHTS_FILE}
    assert not engine.registered and (await http.get("/api/v1/adapters")).json()["data"] == []

    asked = len(hub.asked)
    await page.get_by_role("button", name="Register sql").click()
    await expect(report).to_contain_text("sql version 1 is registered. Requests for sql get version 1 from now on.")
    assert len(hub.asked) == asked, "the bytes that were checked are those that are served"
    [digest] = engine.registered
    answer = await http.post("/v1/completions", json={"model": "sql", "prompt": "a", "max_tokens": 64})
    assert answer.json()["choices"][0]["text"] == sentence_of(digest)
    assert list(state.registry.store.incoming.iterdir()) == []
