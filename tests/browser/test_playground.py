import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, Route, expect

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.state import State
from tests.web.fake_engine import BASE_SENTENCE, FakeEngine, sentence_of
from tests.web.test_adapters_api import add
from tests.web.tools import say, use_template

from .conftest import Watch

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

FIGURES = re.compile(r"TTFT\xa0\d+\xa0ms · \d+\xa0tokens · \d+\xa0tokens/s")
"""No figure is parted from its unit at the end of a line."""


async def open_playground(page: Page, http: httpx.AsyncClient, folders: list[Path]) -> None:
    for name, folder in zip(("sql", "json"), folders, strict=True):
        assert (await add(http, name, folder)).status_code == 201
    await page.goto("/playground")
    await expect(page.get_by_role("button", name="Run")).to_be_enabled()  # its script is there


async def test_nothing_is_sent_before_the_script_is_there(page: Page) -> None:
    """The browser would put the prompt into the address, and answer nothing."""
    held: list[Route] = []
    await page.route("**/playground.js", lambda route: held.append(route))
    await page.goto("/playground", wait_until="commit")
    message = page.get_by_label("Message")
    await message.fill("a secret")
    await expect(page.get_by_role("button", name="Run")).to_be_disabled()
    await page.get_by_label("Max tokens").press("Enter")
    assert "secret" not in page.url
    await held[0].continue_()
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane footer").first).to_contain_text("tokens/s")
    assert "secret" not in page.url
    await expect(page.locator(".pane .turns").first).to_contain_text("a secret")


async def test_base_and_two_adapters_answer_side_by_side(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await open_playground(page, http, adapter_folders)
    digests = list(engine.registered)
    engine.delay = 0.01
    await page.get_by_label("Message").fill("What is the weather?")
    await page.get_by_role("button", name="Run").click()
    panes = page.locator(".pane")
    await expect(panes).to_have_count(3)
    await expect(panes.locator("h2")).to_have_text(["tiny base", "json", "sql"])
    said = [BASE_SENTENCE, sentence_of(digests[1]), sentence_of(digests[0])]
    await expect(panes.locator("output")).to_have_text(said)
    for place in range(3):
        await expect(panes.nth(place).locator("footer")).to_have_text(FIGURES)
    await expect(page.get_by_role("button", name="Stop")).to_be_disabled()


async def test_answers_appear_word_by_word_and_can_be_stopped(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, adapter_folders: list[Path]
) -> None:
    await open_playground(page, http, adapter_folders)
    engine.stays_at = 7
    await page.get_by_label("Message").press("Control+Enter")
    base = page.locator(".pane", has_text="tiny")
    await expect(base.locator("output")).to_have_text(re.compile("^The quick"))
    assert len(await base.locator("output").inner_text()) < len(BASE_SENTENCE)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".pane footer")).to_have_text(["stopped"] * 3)
    await expect(page.locator('.side [data-bind="engine.words"]')).to_have_text("Ready · CPU")
    async with httpx.AsyncClient(base_url=str(http.base_url)) as other:
        assert (await other.get("/health")).status_code == 200
    assert not engine.running


async def test_a_link_chooses_its_adapter_and_at_most_four_are_chosen(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    for number in range(5):
        await add(http, f"a{number}", adapter_folders[number % 2])
    await page.goto("/playground?model=a4&prompt=Hello")
    await expect(page.get_by_label("Message")).to_have_value("Hello")
    chosen = page.locator('input[name="model"]:checked')
    assert await chosen.evaluate_all("boxes => boxes.map(box => box.value)") == ["tiny", "a4"]
    for name in ("a0", "a1"):
        await page.get_by_role("checkbox", name=name).check()
    await expect(page.get_by_role("checkbox", name="a2")).to_be_disabled()
    for name in ("tiny", "a4", "a0", "a1"):
        await page.get_by_role("checkbox", name=name).uncheck()
    await expect(page.get_by_role("button", name="Run")).to_be_disabled()


@pytest.mark.parametrize(("width", "rows"), [(1280, [4]), (1120, [2, 2]), (400, [1, 1, 1, 1]), (1120, [3])], ids=str)
async def test_panes_fill_their_rows(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path], width: int, rows: list[int]
) -> None:
    names = [f"a{number}" for number in range(sum(rows) - 1)]
    for number, name in enumerate(names):
        await add(http, name, adapter_folders[number % 2])
    await page.set_viewport_size({"width": width, "height": 800})
    await page.goto("/playground?" + "&".join(f"model={name}" for name in names))
    await page.get_by_role("button", name="Run").click()
    panes = page.locator(".pane")
    await expect(panes).to_have_count(sum(rows))
    tops = await panes.evaluate_all("panes => panes.map(pane => Math.round(pane.getBoundingClientRect().top))")
    assert [tops.count(top) for top in sorted(set(tops))] == rows


async def test_reasoning_looks_unlike_the_answer(page: Page, state: State) -> None:
    use_template(state, "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}")
    say(state, "<think>\nThe sun is up.\n</think>\n\nIt is day.")
    await page.goto("/playground")
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane footer")).to_have_text(FIGURES)
    texts = {"italic": "", "normal": ""}
    for span in await page.locator(".pane output span").all():
        texts[await span.evaluate("span => getComputedStyle(span).fontStyle")] += await span.text_content() or ""
    assert texts == {"italic": "The sun is up.", "normal": "It is day."}
    assert "Reasoning: The sun is up." in await page.locator(".pane output").aria_snapshot()
    await page.get_by_label("Message").fill("And now?")
    code = page.locator("#code-text")
    await expect(code).to_contain_text("It is day.")
    await expect(code).not_to_contain_text("The sun is up.")


async def test_a_refused_request_says_why_in_its_pane(page: Page, http: httpx.AsyncClient, watch: Watch) -> None:
    watch.expected = ["400"]
    await page.goto("/playground")
    await page.get_by_label("Message").fill("word " * 300)
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane footer")).to_contain_text("maximum context length is 256 tokens")


async def test_an_engine_that_dies_ends_the_answer_with_words(page: Page, engine: FakeEngine) -> None:
    await page.goto("/playground")
    engine.crash_after = 3
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane footer")).to_contain_text("the engine stopped")
    await expect(page.locator(".pane output")).not_to_be_empty()


async def test_the_code_carries_the_current_prompt(page: Page, address: str) -> None:
    await page.goto("/playground")
    await page.get_by_label("Message").fill("It's me")
    await page.get_by_text("View code").click()
    code = page.locator("#code-text")
    await expect(code).to_contain_text(f"curl {address}/v1/chat/completions")
    await expect(code).to_contain_text("It'\\''s me")
    for language in ("python", "javascript"):
        await expect(page.locator(f"#code-{language}")).to_contain_text("It's me")
        await expect(page.locator(f"#code-{language}")).to_contain_text(f"{address}/v1")


async def test_versions_are_compared_token_by_token(
    page: Page, http: httpx.AsyncClient, adapter_folders: list[Path]
) -> None:
    for folder in adapter_folders:
        await add(http, "sql", folder)
    await page.goto("/playground?model=sql")
    await page.get_by_role("checkbox", name="sql@1").check()
    await page.get_by_role("checkbox", name="sql@2").check()
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane h2")).to_have_text(["tiny base", "sql", "sql@2", "sql@1"])
    await expect(page.locator(".pane .parting")).to_have_count(3)
    await page.locator("#tokens summary").click()
    await expect(page.locator("#tokens thead th")).to_have_count(12)
    await expect(page.locator("#tokens tbody tr").first).to_be_visible()
    await page.get_by_label("Compare token by token").uncheck()
    await page.get_by_role("button", name="Regenerate").click()
    await expect(page.locator("#tokens")).to_be_hidden()
    await expect(page.locator(".pane footer").last).to_have_text(FIGURES)


async def test_compared_log_probabilities_are_those_that_the_api_gives(
    page: Page, http: httpx.AsyncClient, engine: FakeEngine, checkpoint: Path, adapter_folders: list[Path]
) -> None:
    """The adapter says five tokens as the base does, each less likely, and then something else."""
    digest = (await add(http, "sql", adapter_folders[0])).json()["version"]["digest"]
    spoken = Tokenizer(checkpoint).encode(BASE_SENTENCE, add_special_tokens=False)
    engine.says, engine.doubts = {digest: [*spoken[:5], *spoken[7:9]]}, {digest: 0.375}
    await page.goto("/playground?model=sql")
    await page.get_by_label("Message").fill("What is the weather?")
    await page.get_by_label("Seed").fill("7")
    await page.get_by_label("Temperature").fill("0.8")
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane footer")).to_have_text([FIGURES] * 2)
    await page.locator("#tokens summary").click()
    await expect(page.locator("#tokens thead th")).to_have_text(["", "tiny", "nats", "sql", "nats", "difference"])
    shown = [await row.locator("td").all_inner_texts() for row in await page.locator("#tokens tbody tr").all()]

    body = {"messages": [{"role": "user", "content": "What is the weather?"}], "seed": 7, "temperature": 0.8}
    base, sql = [await asked(http, {**body, "model": model, "max_tokens": 128}) for model in ("tiny", "sql")]
    assert len(sql) == 8 and len(shown) == len(base) > len(sql)
    for place, (row, mine) in enumerate(zip(shown, base, strict=True)):
        assert row[:3] == [f"{place + 1}", *mine]
        assert row[3:5] == (list(sql[place]) if place < len(sql) else ["", ""])
        assert row[5] == ("-0.375" if place < 5 else "–" if place < len(sql) else "")
    prompts = {tuple(request.prompt_token_ids) for request in engine.requests}
    drawn_by = {(request.params.seed, request.params.temperature) for request in engine.requests}
    assert (len(engine.requests), len(prompts), drawn_by) == (4, 1, {(7, 0.8)})

    pane = page.get_by_role("region", name="sql")
    assert {await span.get_attribute("data-shade") for span in (await pane.locator("output span").all())[:4]} == {"1"}
    await expect(pane.locator(".parting")).to_have_count(1)


async def asked(http: httpx.AsyncClient, body: dict[str, object]) -> list[tuple[str, str]]:
    """Token and log-probability of each place, as the page writes them."""
    answer = (await http.post("/v1/chat/completions", json=body | {"logprobs": True})).json()
    entries = answer["choices"][0]["logprobs"]["content"]
    return [(json.dumps(one["token"], ensure_ascii=False), f"{one['logprob'] + 0.0:.3f}") for one in entries]
