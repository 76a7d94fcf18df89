"""Encoders over HTTP: prompts and pairs that are cut keep their beginnings, and uploads are judged by hidden states."""

from pathlib import Path

import httpx
import pytest

from loraplex.engine.pooling.wanted import ModelClasses
from loraplex.web.state import State
from tests.checkpoints import make_adapter

from ..fake_engine import FakeEngine
from ..test_adapters_api import add, as_admin
from .test_scores import ask

__all__ = ["as_admin"]


@pytest.fixture
async def engine(state: State) -> FakeEngine:
    assert isinstance(state.engine, FakeEngine)
    state.engine.keeps_beginning, state.engine.why_silent = True, "this model makes embeddings"
    await state.engine.start()
    return state.engine


async def test_a_prompt_that_is_cut_keeps_its_first_tokens(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await ask(client, "/v1/embeddings", model="tiny", input=list(range(3, 20)), truncate_prompt_tokens=4)
    assert engine.requests[-1].prompt_token_ids == [3, 4, 5, 6] and engine.requests[-1].second_text is None
    await ask(client, "/v1/embeddings", model="tiny", input=[*range(3, 20), 1], truncate_prompt_tokens=4)
    assert engine.requests[-1].prompt_token_ids == [3, 4, 5, 1]


async def test_pairs_say_where_the_second_text_begins(
    client: httpx.AsyncClient, state: State, engine: FakeEngine
) -> None:
    engine.classes = ModelClasses(labels=["fits"])
    await engine.start()
    tokenizer = (await state.text_processors.of(None)).tokenizer
    query, document = "a fox", "the quick brown fox " * 9
    count = len(tokenizer.encode(query, add_special_tokens=False))
    await ask(client, "/score", model="tiny", text_1=query, text_2=document)
    assert engine.requests[-1].second_text == count
    assert engine.requests[-1].prompt_token_ids == tokenizer.encode_pair(query, document)
    for path, sides in (
        ("/score", {"text_1": query, "text_2": document}),
        ("/rerank", {"query": query, "documents": [document]}),
    ):
        await ask(client, path, model="tiny", truncate_prompt_tokens=count + 5, **sides)
        [*request] = engine.requests[-1:]
        assert request[0].prompt_token_ids == tokenizer.encode_pair(query, document)[: count + 5]
        assert request[0].second_text == count


async def test_chats_are_refused_and_uploads_judged(
    client: httpx.AsyncClient, engine: FakeEngine, checkpoint: Path, tmp_path: Path
) -> None:
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": []})):
        refused = await client.post(path, json={"model": "tiny", "messages": [{"role": "user", "content": "a"}]} | body)
        assert refused.status_code == 400
    made = await add(client, "one", make_adapter(tmp_path / "one", checkpoint))
    assert made.status_code == 201, made.text
    assert {request.pooling is not None for request in engine.effect_checks} == {True}
    assert "hidden states differ" in made.text
