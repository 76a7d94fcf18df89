"""Ollama's API with the real ollama client, over a real socket."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import ollama
import pytest
import pytest_asyncio

from loraplex.web.state import State

from ..conftest import KEY
from ..fake_engine import BASE_SENTENCE, FakeEngine
from ..test_reasoning import TEMPLATE, THOUGHT
from ..test_streams import server
from ..tools import CALL, HELLO, SHORT, TIME, WEATHER, say, use_template

__all__ = ["server"]


@pytest_asyncio.fixture
async def sdk(server: str) -> AsyncIterator[ollama.AsyncClient]:
    client = ollama.AsyncClient(server, headers={"authorization": f"Bearer {KEY}"})
    yield client
    await client._client.aclose()


async def test_a_chat_whole_and_streamed(sdk: ollama.AsyncClient) -> None:
    whole = await sdk.chat("tiny", HELLO)
    assert whole.message.content == BASE_SENTENCE and whole.done and whole.done_reason == "stop"
    parts = [part async for part in await sdk.chat("tiny:latest", HELLO, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == BASE_SENTENCE and len(parts) > 2
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert (last.eval_count, last.prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
    for one in (whole, last):
        assert one.total_duration and one.load_duration is not None and one.prompt_eval_duration is not None
        assert 0 < (one.eval_duration or 0) < one.total_duration


async def test_a_prompt_in_the_template_and_raw(sdk: ollama.AsyncClient, engine: FakeEngine) -> None:
    whole = await sdk.generate("tiny", "Hello", system="Be brief.", options={"num_predict": 3, "seed": 7})
    assert whole.response and BASE_SENTENCE.startswith(whole.response)
    assert (whole.done_reason, whole.eval_count) == ("length", 3)
    parts = [part async for part in await sdk.generate("tiny", "Hello", raw=True, stream=True)]
    assert "".join(part.response for part in parts) == BASE_SENTENCE and parts[-1].done
    templated, raw = (len(request.prompt_token_ids) for request in engine.requests[-2:])
    assert raw < templated


async def test_a_turn_of_tools(sdk: ollama.AsyncClient, state: State) -> None:
    use_template(state, SHORT)
    say(state, f"See:\n{CALL}")
    tools: Any = [WEATHER, TIME]
    parts = [part async for part in await sdk.chat("tiny", HELLO, tools=tools, stream=True)]
    for answer in (parts, [await sdk.chat("tiny", HELLO, tools=tools)]):
        [call] = [call for part in answer for call in part.message.tool_calls or ()]
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Zürich", "days": 2})
        assert "".join(part.message.content or "" for part in answer).startswith("See:")
        assert answer[-1].done_reason == "stop"
    say(state, "Sunny.")
    turns = [*HELLO, answer[-1].message, {"role": "tool", "content": "sunny", "tool_name": "weather"}]
    assert (await sdk.chat("tiny", turns, tools=tools)).message.content == "Sunny."


async def test_thinking_is_told_apart(sdk: ollama.AsyncClient, state: State) -> None:
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        await sdk.chat("tiny", HELLO, think=True)
    use_template(state, TEMPLATE)
    say(state, THOUGHT)
    whole = await sdk.chat("tiny", HELLO, think=True)
    assert (whole.message.thinking, whole.message.content) == ("The sun\n\nis up.", "It is day.")
    parts = [part async for part in await sdk.generate("tiny", "Hello", stream=True)]
    assert "".join(part.thinking or "" for part in parts) == "The sun\n\nis up."
    assert "".join(part.response for part in parts) == "It is day."
    silent = await sdk.chat("tiny", HELLO, think=False)
    assert (silent.message.thinking, silent.message.content) == (None, "It is day.")


async def test_thinking_after_a_raw_prompt(sdk: ollama.AsyncClient, state: State) -> None:
    """As Ollama does it: told apart unless it is asked not to; the prompt may have opened it."""
    with pytest.raises(ollama.ResponseError, match="does not support thinking"):
        await sdk.generate("tiny", "Hello", raw=True, think=True)
    use_template(state, TEMPLATE)
    say(state, THOUGHT)
    for think in (True, None):
        whole = await sdk.generate("tiny", "Hello", raw=True, think=think)
        assert (whole.thinking, whole.response) == ("The sun\n\nis up.", "It is day.")
        parts = [part async for part in await sdk.generate("tiny", "Hello", raw=True, think=think, stream=True)]
        assert "".join(part.thinking or "" for part in parts) == "The sun\n\nis up."
        assert "".join(part.response for part in parts) == "It is day."
    as_written = await sdk.generate("tiny", "Hello", raw=True, think=False)
    assert (as_written.thinking, as_written.response) == (None, THOUGHT)
    say(state, "It is up.</think>It is day.")
    opened = await sdk.generate("tiny", "Hello<think>", raw=True, think=True)
    assert (opened.thinking, opened.response) == ("It is up.", "It is day.")


async def test_what_there_is(sdk: ollama.AsyncClient, state: State) -> None:
    [base] = (await sdk.list()).models
    assert base.model == "tiny" and base.digest == state.base.signature.fingerprint
    [running] = (await sdk.ps()).models
    assert running.model == "tiny" and running.context_length == state.max_model_len
    shown = await sdk.show("tiny")
    assert "completion" in (shown.capabilities or []) and shown.modelinfo
    with pytest.raises(ollama.ResponseError, match="does not exist") as refused:
        await sdk.show("nowhere")
    assert refused.value.status_code == 404


async def test_embeddings(sdk: ollama.AsyncClient, state: State) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=str(sdk._client.base_url), headers=headers) as http:
        body = {"model": "tiny", "input": ["one", "two three"]}
        expected = [one["embedding"] for one in (await http.post("/v1/embeddings", json=body)).json()["data"]]
    found = await sdk.embed("tiny", ["one", "two three"])
    assert (
        [list(vector) for vector in found.embeddings] == expected and found.prompt_eval_count and found.total_duration
    )
    assert list((await sdk.embed("tiny:latest", "one")).embeddings[0]) == expected[0]
    assert list((await sdk.embeddings("tiny", "one")).embedding) == expected[0]
    long = "word " * state.max_model_len
    assert (await sdk.embed("tiny", long)).prompt_eval_count == state.max_model_len
    with pytest.raises(ollama.ResponseError, match="input"):
        await sdk.embed("tiny", long, truncate=False)


async def test_log_probabilities(sdk: ollama.AsyncClient) -> None:
    options = {"num_predict": 2}
    for answer in (
        await sdk.chat("tiny", HELLO, logprobs=True, top_logprobs=2, options=options),
        await sdk.generate("tiny", "Hello", logprobs=True, top_logprobs=2, options=options),
    ):
        assert answer.logprobs is not None and [len(one.top_logprobs or ()) for one in answer.logprobs] == [2, 2]


async def test_a_model_is_unloaded_in_words_alone(sdk: ollama.AsyncClient) -> None:
    for answer in (await sdk.generate("tiny", keep_alive=0), await sdk.chat("tiny", keep_alive=0)):
        assert (answer.done, answer.done_reason) == (True, "unload")
    [running] = (await sdk.ps()).models
    assert running.model == "tiny" and (await sdk.chat("tiny", HELLO)).message.content == BASE_SENTENCE


async def test_what_is_done_elsewhere_says_where(sdk: ollama.AsyncClient) -> None:
    for asked in (sdk.pull("llama3"), sdk.delete("tiny"), sdk.copy("tiny", "other")):
        with pytest.raises(ollama.ResponseError, match="is not supported here") as refused:
            await asked
        assert refused.value.status_code == 501


async def test_a_wrong_key_is_refused_in_its_form(server: str) -> None:
    client = ollama.AsyncClient(server, headers={"authorization": "Bearer wrong"})
    with pytest.raises(ollama.ResponseError, match="Incorrect API key") as refused:
        await client.chat("tiny", HELLO)
    assert refused.value.status_code == 401
    await client._client.aclose()
