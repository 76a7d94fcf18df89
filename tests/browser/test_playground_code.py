"""The playground's code does what the playground does, once it is pasted."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.web.conftest import KEY
from tests.web.fake_engine import BASE_SENTENCE, FakeEngine

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PROMPT = 'It\'s "fine": $HOME `date` \\n 100 %, für 3 €\nand a second line'
OPENAI = """export default class OpenAI {
  constructor({ baseURL, apiKey }) {
    const send = async (body) => {
      const headers = { authorization: `Bearer ${apiKey}`, "content-type": "application/json" };
      const request = { method: "POST", headers, body: JSON.stringify(body) };
      const answer = await fetch(`${baseURL}/chat/completions`, request);
      return answer.json();
    };
    this.chat = { completions: { create: send } };
  }
}
"""
"""As much of the JavaScript client as the code uses, which is not installed where these tests run."""


def without(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} is installed")


@pytest.mark.parametrize(
    "language",
    [pytest.param("text", marks=without("curl")), "python", pytest.param("javascript", marks=without("node"))],
)
async def test_the_code_runs_as_it_is_copied(page: Page, engine: FakeEngine, tmp_path: Path, language: str) -> None:
    await page.goto("/playground")
    await page.get_by_label("Message").fill(PROMPT)
    await page.get_by_label("Seed").fill("11")
    await page.get_by_label("Max tokens").fill("100")
    await page.get_by_role("button", name="Run").click()
    await expect(page.locator(".pane output")).to_have_text(BASE_SENTENCE)
    await page.get_by_text("View code").click()
    printed = await run(await page.locator(f"#code-{language}").inner_text(), language, tmp_path)
    assert BASE_SENTENCE in printed
    by_page, by_code = engine.requests
    assert by_code.prompt_token_ids == by_page.prompt_token_ids
    assert (by_code.params.seed, by_code.params.max_tokens) == (11, 100)
    assert by_code.params.temperature == by_page.params.temperature


async def run(code: str, language: str, folder: Path) -> str:
    """What the program prints with nothing but a key in its environment."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LORAPLEX_KEY": KEY}
    program = await asyncio.create_subprocess_exec(
        *command_of(code, language, folder), env=environment, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await program.communicate()
    assert program.returncode == 0
    return printed.decode()


def command_of(code: str, language: str, folder: Path) -> list[str]:
    if language == "text":
        return ["bash", "-c", code]
    if language == "python":
        return [sys.executable, "-c", code]
    client = folder / "node_modules" / "openai"
    client.mkdir(parents=True)
    (client / "package.json").write_text('{"type": "module", "exports": "./index.js"}')
    (client / "index.js").write_text(OPENAI)
    (folder / "request.mjs").write_text(code)
    return ["node", "request.mjs"]
