"""A model that generates no text: each API says so, and names what the model answers. It has no chat template."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from loraplex.engine.pooling.wanted import ModelClasses, PoolingKind
from loraplex.web.state import State

from ..fake_engine import FakeEngine

MESSAGES = [{"role": "user", "content": "Hello"}]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("/v1/completions", {"prompt": "Hello"}),
    ("/v1/responses", {"input": "Hello"}),
    ("/v1/responses/input_tokens", {"input": "Hello"}),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/api/chat", {"messages": MESSAGES, "think": True}),
    ("/api/generate", {"prompt": "Hello"}),
    ("/api/generate", {"prompt": "Hello", "raw": True}),
]
VECTORS, COMPARED = "/v1/embeddings for vectors", "/score and /rerank to compare texts"


@pytest.fixture
async def engine(state: State) -> FakeEngine:
    assert isinstance(state.engine, FakeEngine)
    state.engine.why_silent = "this model generates no text"
    state.text_processors.base = replace(state.text_processors.base, template=None)
    await state.engine.start()
    return state.engine


@pytest.mark.parametrize(("path", "fields"), ASKED)
async def test_each_api_names_what_is_answered(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, fields: dict[str, Any]
) -> None:
    refused = await client.post(path, json={"model": "tiny", "stream": False, **fields})
    vectors = VECTORS.replace("/v1/embeddings", "/api/embed") if path.startswith("/api/") else VECTORS
    assert refused.status_code == 400
    error = refused.json()["error"]
    said = error if isinstance(error, str) else error["message"]
    assert said == f"This model generates no text. Use {vectors} or {COMPARED} instead."
    assert not engine.requests


@pytest.mark.parametrize(
    ("labels", "kind", "vectors", "instead"),
    [
        (["fits"], PoolingKind.CLS, True, f"/score, /rerank or /classify for scores or {VECTORS}"),
        (["bad", "good"], PoolingKind.CLS, False, "/classify for classes"),
        (["O", "B"], PoolingKind.ALL, False, "/pooling for the classes of tokens"),
        ([], PoolingKind.CLS, False, "/classify with an adapter that classifies"),
    ],
)
async def test_it_names_only_what_the_base_answers(
    client: httpx.AsyncClient, engine: FakeEngine, labels: list[str], kind: PoolingKind, vectors: bool, instead: str
) -> None:
    engine.classes, engine.classified_by = ModelClasses(labels=labels) if labels else None, kind
    engine.pooling = engine.pooling if vectors else None
    await engine.start()
    refused = await client.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES})
    assert refused.json()["error"]["message"] == f"This model generates no text. Use {instead} instead."


async def test_a_stream_is_refused_too(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "stream": True}
    refused = await client.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400 and VECTORS in refused.json()["error"]["message"]


async def test_an_unknown_name_stays_unknown(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    refused = await client.post("/v1/chat/completions", json={"model": "nowhere", "messages": MESSAGES})
    assert refused.status_code == 404


async def test_messages_cannot_be_tokenized_and_a_prompt_can(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    refused = await client.post("/tokenize", json={"messages": MESSAGES})
    assert refused.status_code == 400 and "Send the text as prompt" in refused.json()["error"]["message"]
    assert (await client.post("/tokenize", json={"prompt": "Hello"})).status_code == 200
