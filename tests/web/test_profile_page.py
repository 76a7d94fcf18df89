"""The serving profile on an adapter's page as plain HTTP: what is typed is stored, what is refused stays typed."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.web.admin.adapters.profile_form import as_document, as_fields, summary
from loraplex.web.state import State

from .test_pages import HTMX, XSS, Headers, first_data, login, person, trusted

__all__ = ["first_data", "login", "person", "trusted"]
PATH = "/adapters/sql/profile"
WHOLE = ServingProfile(
    system_prompt='\n\nTwo lines,\n then <b>more</b> & "quotes" 😀 ',
    chat_template="{{ messages[0].content }}\n",
    tool_call_parser="hermes",
    reasoning_parser="think",
    temperature=0.0,
    top_p=0.95,
    top_k=40,
    min_p=0.1,
    presence_penalty=-1.5,
    frequency_penalty=1.0,
    repetition_penalty=1.1,
    seed=2**63 - 1,
    stop=["\n\n", " ###", '"', "\\n", "Zürich"],
    max_tokens=64,
    max_tokens_limit=128,
)


def typed(html: str) -> dict[str, str]:
    """What a browser would send of the form: it drops a line break after <textarea> and ends lines with CRLF."""
    form = BeautifulSoup(html, "html.parser").select_one("#profile form")
    assert form is not None
    fields = {str(field["name"]): str(field.get("value", "")) for field in form.select("input")}
    for area in form.select("textarea"):
        text = area.get_text()
        fields[str(area["name"])] = text.removeprefix("\n").replace("\n", "\r\n")
    for choice in form.select("select"):
        chosen = choice.select_one("option[selected]") or choice.select_one("option")
        assert chosen is not None
        fields[str(choice["name"])] = str(chosen["value"])
    return fields


async def stored(state: State) -> ServingProfile | None:
    _, profile = await asyncio.to_thread(state.registry.profiles.get, "sql")
    return profile


async def test_what_stands_in_the_form_is_what_is_stored(
    person: httpx.AsyncClient, trusted: Headers, state: State
) -> None:
    state.text_processors.allowed = True
    profile = ServingProfile(**{name: getattr(WHOLE, name) for name in WHOLE.given() if name != "chat_template"})
    await asyncio.to_thread(state.registry.profiles.set, "sql", profile, actor="cli")
    state.registry.snapshots.refresh()
    for path in ("/adapters/sql", PATH, "/adapters/sql@1/profile"):
        fields = typed((await person.get(path, headers=HTMX)).text)
        answer = await person.post(PATH, data=fields, headers=trusted | HTMX)
        assert "Saved." in answer.text
        assert await stored(state) == profile, path


def test_a_form_says_every_field() -> None:
    assert as_document(as_fields(WHOLE)) == WHOLE.given()
    assert as_document(as_fields(None)) == {}
    assert "temperature 0" in summary(WHOLE) and "5 stop strings" in summary(WHOLE)


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("temperature", "hot", "temperature must be a number"),
        ("seed", "true", "seed must be a number"),
        ("top_p", "NaN", "top_p"),
        ("top_k", "1.5", "top_k"),
        ("max_tokens", "0", "max_tokens must be between 1"),
        ("stop", '"open', "not a valid JSON string"),
        ("system_prompt", "x" * 40_000, "at most 32,768 bytes"),
        ("chat_template", "{{ messages }}", "chat_template is refused"),
    ],
)
async def test_what_is_refused_stays_in_the_form(
    person: httpx.AsyncClient, trusted: Headers, state: State, field: str, text: str, words: str
) -> None:
    fields = {"system_prompt": "Long work.", field: text}
    answer = await person.post(PATH, data=fields, headers=trusted | HTMX)
    assert answer.status_code == 400
    soup = BeautifulSoup(answer.text, "html.parser")
    assert words in soup.select_one("[role=alert]").text  # type: ignore[union-attr]
    assert typed(answer.text)[field] == text
    assert typed(answer.text)["system_prompt"] == fields["system_prompt"]
    assert [str(control["name"]) for control in soup.select("[aria-invalid]")] == [field]
    assert await stored(state) is None
    whole = await person.post(PATH, data=fields, headers=trusted)
    assert whole.status_code == 400 and "<h1>" in whole.text


async def test_without_scripts(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    answer = await person.post(PATH, data={"seed": "3"}, headers=trusted)
    assert (answer.status_code, answer.headers["location"]) == (303, "/adapters/sql?done=profile")
    assert await stored(state) == ServingProfile(seed=3)
    assert "seed 3" in (await person.get("/adapters/sql")).text
    emptied = await person.post(PATH, data={"seed": " ", "stop": "\r\n"}, headers=trusted | HTMX)
    assert "Removed." in emptied.text
    assert await stored(state) is None


async def preview(person: httpx.AsyncClient, trusted: Headers, status: int = 200, **fields: Any) -> str:
    answer = await person.post(f"{PATH}/preview", data=fields, headers=trusted | HTMX)
    assert answer.status_code == status, answer.text
    soup = BeautifulSoup(answer.text, "html.parser")
    found = soup.select_one("pre, [role=alert]")
    assert found is not None
    return found.text


async def test_the_preview_is_the_prompt(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    message = f"Hi\r\n{XSS}"
    shown = await preview(person, trusted, system_prompt="Be brief.", message=message)
    sent = message.replace("\r\n", "\n")
    assert shown == f"<|system|>Be brief.</s><|user|>{sent}</s><|assistant|>"
    assert await preview(person, trusted, message="Hello") == "<|user|>Hello</s><|assistant|>"
    state.text_processors.allowed = True
    assert await preview(person, trusted, chat_template="[{{ messages[0].content }}]", message="a") == "[a]"
    assert "broken in line 1" in await preview(person, trusted, 400, chat_template="{% for %}")
    assert "temperature" in await preview(person, trusted, 400, temperature="warm")
    assert await stored(state) is None, "looked at, not saved"


async def test_hostile_texts_stay_texts(person: httpx.AsyncClient, trusted: Headers, state: State) -> None:
    await person.post(PATH, data={"system_prompt": f"</textarea>{XSS}", "stop": f"x{XSS}"}, headers=trusted)
    profile = await stored(state)
    assert profile is not None and profile.stop == [f"x{XSS}"]
    for path in ("/adapters/sql", PATH, "/playground?model=sql"):
        answer = await person.get(path)
        assert "<img src=x" not in answer.text and "<script>alert" not in answer.text
    assert json.dumps(typed((await person.get(PATH)).text)["system_prompt"]) == json.dumps(f"</textarea>{XSS}")
