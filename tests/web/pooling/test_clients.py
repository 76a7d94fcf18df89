"""Embeddings with the real openai client, over a real socket."""

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from loraplex.web.state import State

from ..conftest import KEY
from ..fake_engine import FakeEngine
from ..fake_vectors import SIZE, vector_of
from ..test_streams import server

__all__ = ["server"]


@pytest_asyncio.fixture
async def sdk(server: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=KEY, max_retries=0) as client:
        yield client


async def test_openai_reads_what_it_asks_for(sdk: openai.AsyncOpenAI, state: State) -> None:
    """Without an encoding it asks for base64, and decodes it."""
    assert isinstance(state.engine, FakeEngine)
    made = await sdk.embeddings.create(model="tiny", input=["one", "two", "three"])
    vectors = [vector_of(request).tolist() for request in state.engine.requests[-3:]]
    assert [list(entry.embedding) for entry in made.data] == vectors and [it.index for it in made.data] == [0, 1, 2]
    plain = await sdk.embeddings.create(model="tiny", input=["one", "two", "three"], encoding_format="float")
    assert [entry.embedding for entry in plain.data] == vectors
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 0
    short = await sdk.embeddings.create(model="tiny", input=[5, 6, 7], dimensions=4)
    assert len(short.data[0].embedding) == 4 < SIZE


async def test_openai_knows_the_errors(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length is 256 tokens") as refused:
        await sdk.embeddings.create(model="tiny", input=[5] * 300)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await sdk.embeddings.create(model="nobody", input="a")
    with pytest.raises(openai.BadRequestError, match="between 1 and 8"):
        await sdk.embeddings.create(model="tiny", input="a", dimensions=9)
