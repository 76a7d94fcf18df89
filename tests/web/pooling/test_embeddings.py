"""POST /v1/embeddings and /pooling: shapes of input, encodings, limits, refusals, what is counted."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace

from loraplex.engine.ipc.client import EngineState
from loraplex.engine.pooling.wanted import PoolingKind
from loraplex.registry.access.quotas import Quota
from loraplex.web.state import State

from ..fake_engine import MAX_MODEL_LEN, FakeEngine
from ..fake_vectors import POOLING, SIZE, vector_of
from ..test_adapters_api import add, as_admin

__all__ = ["as_admin"]
PATHS = {"/v1/embeddings": "embedding", "/pooling": "data"}


async def ask(client: httpx.AsyncClient, path: str = "/v1/embeddings", **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json={"model": "tiny", "input": "hello world"} | fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def engine_of(state: State) -> FakeEngine:
    assert isinstance(state.engine, FakeEngine)
    return state.engine


@pytest.mark.parametrize("path", PATHS)
async def test_texts_and_token_ids_give_the_engines_vectors(client: httpx.AsyncClient, state: State, path: str) -> None:
    name, engine = PATHS[path], engine_of(state)
    one = await ask(client, path)
    hello = engine.requests[-1].prompt_token_ids
    shapes = [("hello world", 1), (["hello world", "other"], 2), (hello, 1), ([hello, [5, 6]], 2)]
    for given, count in shapes:
        body = await ask(client, path, input=given)
        made = [vector_of(request).tolist() for request in engine.requests[-count:]]
        assert [entry[name] for entry in body["data"]] == made
        assert [entry["index"] for entry in body["data"]] == list(range(count))
        assert body["data"][0][name] == one["data"][0][name]
        assert {entry["object"] for entry in body["data"]} == {"embedding" if name == "embedding" else "pooling"}
        tokens = sum(len(request.prompt_token_ids) for request in engine.requests[-count:])
        assert body["usage"] == {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert (body["object"], body["model"]) == ("list", "tiny")


async def test_base64_is_float32_little_endian(client: httpx.AsyncClient) -> None:
    floats = await ask(client)
    coded = await ask(client, encoding_format="base64")
    vector = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert vector.tolist() == floats["data"][0]["embedding"] and len(vector) == SIZE


async def test_what_the_engine_is_asked_for(client: httpx.AsyncClient, state: State) -> None:
    await ask(client, dimensions=3, normalize=False, priority=4, cache_salt="mine", user="somebody")
    request = engine_of(state).requests[-1]
    assert request.pooling is not None
    wanted = (request.pooling.kind, request.pooling.normalize, request.pooling.dimensions, request.priority)
    assert wanted == (PoolingKind.MEAN, False, 3, 4) and request.cache_salt.endswith("mine")
    short = await ask(client, input=list(range(3, 20)), truncate_prompt_tokens=4)
    assert engine_of(state).requests[-1].prompt_token_ids == [16, 17, 18, 19] and short["usage"]["prompt_tokens"] == 4
    await ask(client, input=[5] * (MAX_MODEL_LEN + 9), truncate_prompt_tokens=-1)
    assert len(engine_of(state).requests[-1].prompt_token_ids) == MAX_MODEL_LEN


async def test_an_input_may_be_as_long_as_the_model_takes(client: httpx.AsyncClient) -> None:
    assert (await ask(client, input=[5] * MAX_MODEL_LEN))["usage"]["prompt_tokens"] == MAX_MODEL_LEN
    response = await client.post("/v1/embeddings", json={"model": "tiny", "input": [[5], [5] * (MAX_MODEL_LEN + 1)]})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert error["message"].startswith(f"This model's maximum context length is {MAX_MODEL_LEN} tokens. However, ")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [5, "a"]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": [999_999]}, "input"),
        ({"input": [-1]}, "input"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": SIZE + 1}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"embed_dtype": "float16"}, "embed_dtype"),
        ({"endianness": "big"}, "endianness"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"stream": True}, "stream"),
        ({"normalize": "yes"}, "normalize"),
        ({"adapters": [{"name": "nobody"}]}, "adapters"),
        ({"embedding_types": ["int8"]}, "embedding_types"),
        ({"embedding_types": ["float", "ubinary"]}, "embedding_types"),
        ({"embedding_type": "binary"}, "embedding_type"),
        ({"output_dtype": "int8"}, "output_dtype"),
        ({"input_type": "search_query"}, "input_type"),
        ({"late_chunking": True}, "late_chunking"),
        ({"return_multivector": True}, "return_multivector"),
        ({"task": "retrieval.query"}, "task"),
        ({"task_type": "RETRIEVAL_QUERY"}, "task_type"),
        ({"prompt_name": "query"}, "prompt_name"),
        ({"prompt": "query: "}, "prompt"),
        ({"truncate_dim": 3}, "truncate_dim"),
        ({"output_dimension": 3}, "output_dimension"),
        ({"normalized": False}, "normalized"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_wrong_fields_are_refused_by_name(
    client: httpx.AsyncClient, state: State, path: str, fields: dict[str, Any], param: str
) -> None:
    before = len(engine_of(state).requests)
    response = await client.post(path, json={"model": "tiny", "input": "hello"} | fields)
    error = response.json()["error"]
    assert response.status_code in (400, 404) and error["param"].startswith(param), error
    assert len(engine_of(state).requests) == before


async def test_other_refusals(client: httpx.AsyncClient, state: State) -> None:
    without = await client.post("/v1/embeddings", json={"input": "a"})
    assert without.status_code == 400 and without.json()["error"]["param"] == "model"
    assert (await client.post("/pooling", json={"input": "a"})).status_code == 200
    unknown = await client.post("/v1/embeddings", json={"model": "nobody", "input": "a"})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
    classify = await client.post("/pooling", json={"input": "a", "task": "paint"})
    assert classify.status_code == 400 and classify.json()["error"]["param"] == "task"
    state.settings = state.settings.model_copy(update={"max_inputs": 2})
    many = await client.post("/v1/embeddings", json={"model": "tiny", "input": ["a"] * 3})
    assert many.status_code == 400 and "at most 2" in many.json()["error"]["message"]
    ignored = await client.post("/v1/embeddings", json={"model": "tiny", "input": "a", "tone": "kind"})
    assert ignored.headers["x-loraplex-ignored-fields"] == "tone"


async def test_values_that_change_no_vector_pass(client: httpx.AsyncClient) -> None:
    neutral: dict[str, Any] = {"embedding_types": ["float"], "embedding_type": "float", "output_dtype": "float"}
    neutral |= {"late_chunking": False, "return_multivector": False, "prompt": "", "input_type": None}
    answer = await client.post("/v1/embeddings", json={"model": "tiny", "input": "hello world", **neutral})
    assert answer.status_code == 200 and "x-loraplex-ignored-fields" not in answer.headers
    assert answer.json()["data"] == (await ask(client))["data"]


async def test_what_to_do_instead_is_said(client: httpx.AsyncClient) -> None:
    for name, words in (("prompt_name", "Write it into input"), ("output_dimension", "send dimensions")):
        answer = await client.post("/v1/embeddings", json={"model": "tiny", "input": "a", name: 3})
        assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
async def test_the_models_own_prompt_is_before_each_text(client: httpx.AsyncClient, state: State, path: str) -> None:
    engine = engine_of(state)
    engine.pooling = replace(POOLING, prompt="query: ")
    await engine.start()
    tokenizer = (await state.text_processors.of(None)).tokenizer
    await ask(client, path, input=["one", ""])
    await ask(client, path, input="one")
    expected = [tokenizer.encode(f"query: {text}") for text in ("one", "", "one")]
    assert [request.prompt_token_ids for request in engine.requests[-3:]] == expected
    await ask(client, path, input=[[5, 6], [7]])
    assert [request.prompt_token_ids for request in engine.requests[-2:]] == [[5, 6], [7]]
    scored = await client.post("/score", json={"text_1": "one", "text_2": ["", "two"]})
    assert scored.status_code == 200
    expected = [tokenizer.encode(f"query: {text}") for text in ("one", "", "two")]
    assert [request.prompt_token_ids for request in engine.requests[-3:]] == expected


async def test_a_model_without_embeddings_says_why(client: httpx.AsyncClient, state: State) -> None:
    engine = engine_of(state)
    engine.pooling = None
    await engine.start()
    response = await client.post("/v1/embeddings", json={"model": "tiny", "input": "a"})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "model", "unsupported")
    assert error["message"] == "This model makes no embeddings: modules.json has a module 'Dense'."
    engine.state = EngineState.RESTARTING
    assert (await client.post("/v1/embeddings", json={"model": "tiny", "input": "a"})).status_code == 503


async def test_more_inputs_than_the_engine_queues_take_turns(client: httpx.AsyncClient, state: State) -> None:
    engine = engine_of(state)
    engine.delay, engine.max_queue = 0.001, 300
    body = await ask(client, input=[[5 + number % 200] for number in range(1000)])
    assert len(body["data"]) == 1000
    made = {tuple(request.prompt_token_ids): vector_of(request).tolist() for request in engine.requests[-1000:]}
    for number, entry in enumerate(body["data"]):
        assert entry["embedding"] == made[(5 + number % 200,)]


async def test_usage_requests_and_metrics_count_them(client: httpx.AsyncClient, state: State) -> None:
    for _ in range(2):
        await ask(client, input=[[5, 6, 7], [8]])
    await asyncio.to_thread(state.quotas.ledger.flush)
    [row] = (await client.get("/api/v1/usage")).json()["data"]
    assert (row["requests"], row["prompt_tokens"], row["completion_tokens"]) == (2, 8, 0)
    assert len(state.metrics.recent) == 4
    assert (await client.post("/v1/embeddings", json={"model": "tiny", "input": []})).status_code == 400
    assert [one.code for one in state.metrics.log.of("default")].count(400) == 1


async def test_a_quota_of_tokens_stops_them(client: httpx.AsyncClient, state: State) -> None:
    quota = Quota(tokens_per_minute=10)
    made = state.registry.keys.create("few", ["inference"], actor="system", quota=quota)
    state.registry.snapshots.refresh()
    few = {"authorization": f"Bearer {made.token}"}
    body = {"model": "tiny", "input": [[5, 6, 7, 8]]}
    answers = [await client.post("/v1/embeddings", json=body, headers=few) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_adapters_have_vectors_of_their_own(
    client: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    assert (await add(client, "mine", adapter_folders[0])).status_code == 201
    base_vector, own = [(await ask(client, model=name))["data"][0]["embedding"] for name in ("tiny", "mine")]
    request = engine_of(state).requests[-1]
    assert request.adapters and vector_of(request).tolist() == own != base_vector
    half = await ask(client, adapters=[{"name": "mine", "scale": 0.5}])
    assert half["data"][0]["embedding"] not in (own, base_vector)
