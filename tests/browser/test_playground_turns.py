"""A conversation in the playground: several turns, a system prompt, and what a reload keeps."""

import json
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, Request, expect

from tests.web.fake_engine import BASE_SENTENCE, FakeEngine, sentence_of

from .conftest import NewContext, Watch
from .test_playground import open_playground

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


def follow(page: Page) -> list[dict[str, object]]:
    """The bodies of all requests to models that the page sends from now on."""
    sent: list[dict[str, object]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/v1/chat/completions"):
            sent.append(json.loads(request.post_data or "{}"))

    page.on("request", note)
    return sent


async def send(page: Page, message: str) -> None:
    await page.get_by_label("Message").fill(message)
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled()


async def test_each_column_goes_on_from_its_own_answers(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await open_playground(page, http, adapter_folders)
    sql, _ = list(engine.registered)
    await page.get_by_role("checkbox", name="json").uncheck()
    sent = follow(page)
    await page.get_by_label("System prompt").fill("Be brief.")
    await send(page, "First?")
    await expect(page.get_by_label("Message")).to_have_value("")
    await send(page, "Second?")
    system, first = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "First?"}
    for body in sent[:2]:
        assert body["messages"] == [system, first]
    answers = {"tiny": BASE_SENTENCE, "sql": sentence_of(sql)}
    assert {body["model"]: body["messages"] for body in sent[2:]} == {
        model: [system, first, {"role": "assistant", "content": text}, {"role": "user", "content": "Second?"}]
        for model, text in answers.items()
    }
    pane = page.get_by_role("region", name="sql")
    await expect(pane.locator(".turns p")).to_have_text(["You: First?", f"Answer: {answers['sql']}", "You: Second?"])
    await expect(pane.locator("output")).to_have_text(answers["sql"])
    await expect(page.locator("#tokens")).to_be_visible()

    await page.get_by_role("button", name="Regenerate").click()
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    assert {body["model"]: body["messages"] for body in sent[4:]} == {
        body["model"]: body["messages"] for body in sent[2:4]
    }
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".pane")).to_have_count(0)
    await send(page, "Third?")
    assert [len(body["messages"]) for body in sent[6:]] == [2, 2]  # type: ignore[arg-type]


async def test_a_message_that_nobody_answers_comes_back(page: Page, engine: FakeEngine, watch: Watch) -> None:
    watch.expected = ["503"]
    await page.goto("/playground")
    engine.crash_after = 0
    await send(page, "Anybody?")
    await expect(page.locator(".pane footer")).to_contain_text("the engine stopped")
    await expect(page.get_by_label("Message")).to_have_value("Anybody?")
    await expect(page.get_by_role("button", name="Regenerate")).to_be_disabled()


async def test_a_reload_keeps_everything_and_the_address_only_names_models(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await open_playground(page, http, adapter_folders)
    await page.get_by_role("checkbox", name="tiny").uncheck()
    await page.get_by_role("checkbox", name="json").uncheck()
    await page.get_by_label("System prompt").fill("A secret.")
    await page.get_by_label("Temperature").fill("0.7")
    await page.get_by_label("Compare token by token").uncheck()
    await send(page, "First secret?")
    await page.get_by_label("Message").fill("Second secret?")
    assert page.url.endswith("/playground?model=sql")
    await page.reload()
    await expect(page.get_by_label("Message")).to_have_value("Second secret?")
    await expect(page.get_by_label("System prompt")).to_have_value("A secret.")
    await expect(page.get_by_label("Temperature")).to_have_value("0.7")
    await expect(page.get_by_label("Compare token by token")).not_to_be_checked()
    chosen = page.locator('input[name="model"]:checked')
    assert await chosen.evaluate_all("boxes => boxes.map(box => box.value)") == ["sql"]
    await expect(page.locator(".pane output")).to_have_text(sentence_of(next(iter(engine.registered))))
    sent = follow(page)
    await send(page, "Second secret?")
    assert [message["content"] for message in sent[0]["messages"]][1::2] == ["First secret?", "Second secret?"]  # type: ignore[attr-defined]

    await page.goto("/playground?model=json")
    await expect(page.locator(".pane")).to_have_count(0)
    await expect(page.get_by_label("System prompt")).to_have_value("A secret.")


async def test_another_login_in_the_same_tab_sees_nothing_of_it(new_context: NewContext, page: Page) -> None:
    await page.goto("/playground")
    await page.get_by_label("Message").fill("a secret")
    await expect(page.get_by_role("button", name="Run")).to_be_enabled()
    other = await new_context()
    await page.context.clear_cookies()
    await page.context.add_cookies(await other.cookies())  # type: ignore[arg-type]
    await page.goto("/playground")
    await expect(page.get_by_role("button", name="Run")).to_be_enabled()
    await expect(page.get_by_label("Message")).not_to_have_value("a secret")


async def test_the_code_is_of_the_chosen_model(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    await open_playground(page, http, adapter_folders)
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_text("View code").click()
    choice = page.locator("#code-model")
    await expect(choice.locator("option")).to_have_text(["tiny", "json", "sql"])
    await expect(page.locator("#code-text")).to_contain_text('"model": "tiny"')
    await choice.select_option("sql")
    for language in ("text", "python", "javascript"):
        await expect(page.locator(f"#code-{language}")).to_contain_text("sql")
        await expect(page.locator(f"#code-{language}")).to_contain_text("Be brief.")
    await page.get_by_role("checkbox", name="sql").uncheck()
    await expect(page.locator("#code-text")).to_contain_text('"model": "tiny"')
