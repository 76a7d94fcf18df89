"""The dashboard of an encoder: no page speaks of tokens per second, a KV cache or chats, and code is for vectors."""

import re
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from bs4 import BeautifulSoup

from loraplex.engine.pooling.wanted import ModelClasses, PoolingKind
from loraplex.registry.access.tenants import tenant_id
from loraplex.registry.usage.ledger import _book
from loraplex.web.management.registration import add_from_folder
from loraplex.web.state import State

from .fake_engine import FakeEngine
from .test_access import log_in

PAGES = ("/", "/adapters/sql", "/cache", "/playground", "/system", "/upload", "/usage")
ABSENT = ("KV cache", "tokens/s", "Time to first token", "Prefix", "Parity", "Serving profile", "Try it")
ABSENT_TOO = ("chat/completions", "/v1/completions", "Temperature")


@pytest.fixture
async def encoder(state: State, client: httpx.AsyncClient, adapter_folders: list[Path]) -> FakeEngine:
    assert isinstance(state.engine, FakeEngine)
    add_from_folder(state.registry, state.base, "sql", adapter_folders[0], actor="test")
    state.registry.snapshots.refresh()
    state.engine.why_silent, state.engine.num_blocks = "this model makes embeddings and generates no text", 0
    await state.engine.start()
    cookie, _ = await log_in(state)
    del client.headers["authorization"]
    client.headers.update(cookie | {"accept": "text/html"})
    return state.engine


def shown(page: str) -> str:
    """What people read of it: without what is hidden, and without the settings, which name all there are."""
    soup = BeautifulSoup(page, "html.parser")
    for element in soup.select("[hidden], script, template, #settings, nav"):
        element.decompose()
    return re.sub(r"\s+", " ", soup.get_text(" "))


@pytest.mark.parametrize("path", PAGES)
async def test_pages_speak_of_what_there_is(client: httpx.AsyncClient, encoder: FakeEngine, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 200
    text = shown(answer.text).partition("Settings in force")[0]
    assert [word for word in (*ABSENT, *ABSENT_TOO) if word in text] == []


def book(state: State, prompt: int, output: int) -> None:
    with state.registry.database.write() as session:
        used = {"tenant_id": tenant_id(session, "default"), "day": datetime.now(UTC).date().isoformat(), "hour": 1}
        counts = {"requests": 1, "prompt_tokens": prompt, "completion_tokens": output}
        _book(session, [used | counts | {"adapter_name": "sql", "adapter_digest": "", "actor": "user:admin"}])


async def test_usage_counts_what_was_read(client: httpx.AsyncClient, state: State, encoder: FakeEngine) -> None:
    """Output tokens are shown where the dates have some, of another base."""
    book(state, prompt=70, output=0)
    page = await client.get("/usage")
    assert "Prompt tokens 70 read by the models" in shown(page.text) and "Output" not in shown(page.text)
    assert 'data-writes="no"' in page.text and 'data-writes="no"' in (await client.get("/adapters/sql")).text
    book(state, prompt=30, output=5)
    page = await client.get("/usage")
    assert "Output tokens 5" in shown(page.text) and 'data-writes="yes"' in page.text


async def test_code_asks_for_what_the_model_answers(client: httpx.AsyncClient, encoder: FakeEngine) -> None:
    for path in ("/playground", "/adapters/sql"):
        assert "/v1/embeddings" in shown((await client.get(path)).text)
        assert "client.embeddings.create" in shown((await client.get(path)).text)
    encoder.classes = ModelClasses(labels=["bad", "good"])
    await encoder.start()
    assert "/classify " in shown((await client.get("/adapters/sql")).text)
    encoder.classes = ModelClasses(labels=["relevant"])
    await encoder.start()
    for path in ("/playground", "/adapters/sql"):
        assert "/v1/rerank " in shown((await client.get(path)).text)
    encoder.classified_by = PoolingKind.ALL
    await encoder.start()
    assert "/pooling " in shown((await client.get("/playground")).text)


async def test_a_model_with_texts_has_them_all(client: httpx.AsyncClient, encoder: FakeEngine) -> None:
    encoder.why_silent, encoder.num_blocks = "", 64
    await encoder.start()
    text = "".join([shown((await client.get(path)).text) for path in PAGES])
    assert [word for word in (*ABSENT, "chat/completions", "Temperature") if word not in text] == []
