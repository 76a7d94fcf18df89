"""POST /pooling for tokens: vectors and classes of each, encodings, the usual task, limits, refusals, own heads."""

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from loraplex.engine.pooling.wanted import ModelClasses, PoolingKind
from loraplex.web.pooling import inputs
from loraplex.web.state import State

from ..fake_engine import FakeEngine
from ..fake_vectors import SIZE, vector_of
from ..test_adapters_api import add, as_admin

__all__ = ["as_admin"]


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/pooling", json={"input": ["one two", [5, 6, 7]]} | fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def refusal(client: httpx.AsyncClient, path: str = "/pooling", **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json={"input": "one"} | fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


async def engine_of(state: State, *labels: str, kind: PoolingKind = PoolingKind.ALL) -> FakeEngine:
    assert isinstance(state.engine, FakeEngine)
    state.engine.classes, state.engine.classified_by = ModelClasses(labels=[*labels]) if labels else None, kind
    await state.engine.start()
    return state.engine


async def test_a_vector_for_each_token(client: httpx.AsyncClient, state: State) -> None:
    engine = await engine_of(state, kind=PoolingKind.LAST)
    body = await ask(client, task="token_embed")
    asked = engine.requests[-2:]
    assert [entry["data"] for entry in body["data"]] == [vector_of(request).tolist() for request in asked]
    assert [len(entry["data"]) for entry in body["data"]] == [len(request.prompt_token_ids) for request in asked]
    assert [(entry["object"], entry["index"]) for entry in body["data"]] == [("pooling", 0), ("pooling", 1)]
    assert body["usage"]["total_tokens"] == sum(len(request.prompt_token_ids) for request in asked)
    assert np.linalg.norm(body["data"][1]["data"], axis=1) == pytest.approx(np.ones(3))
    coded = await ask(client, task="token_embed", encoding_format="base64")
    numbers = np.frombuffer(base64.b64decode(coded["data"][1]["data"]), "<f4").reshape(3, SIZE)
    assert numbers.tolist() == body["data"][1]["data"]
    for raw in ({"normalize": False}, {"use_activation": False}, {"normalize": False, "use_activation": False}):
        plain = await ask(client, task="token_embed", dimensions=2, **raw)
        assert np.array(plain["data"][1]["data"]).shape == (3, 2)
        assert np.linalg.norm(plain["data"][1]["data"], axis=1) != pytest.approx(np.ones(3))


async def test_classes_of_each_token_are_what_such_a_base_is_for(client: httpx.AsyncClient, state: State) -> None:
    engine = await engine_of(state, "O", "B-PER", "I-PER")
    body = await ask(client)
    told = [vector_of(request, 3).tolist() for request in engine.requests[-2:]]
    assert [entry["data"] for entry in body["data"]] == told
    assert np.sum(told[1], axis=1) == pytest.approx(np.ones(3))
    raw = await ask(client, task="token_classify", use_activation=False)
    assert raw["data"][1]["data"] == vector_of(engine.requests[-1], 3).tolist() != told[1]
    assert len((await ask(client, task="embed"))["data"][0]["data"]) == SIZE


async def test_without_a_task_a_classifier_classifies(client: httpx.AsyncClient, state: State) -> None:
    await engine_of(state, "bad", "good", kind=PoolingKind.LAST)
    assert [len(entry["data"]) for entry in (await ask(client))["data"]] == [2, 2]


async def test_an_adapters_head_classifies_tokens(
    client: httpx.AsyncClient, state: State, adapter_folders: list[Path]
) -> None:
    engine = await engine_of(state, "O", "B-PER", "I-PER")
    made = await add(client, "mine", adapter_folders[0])
    engine.heads[made.json()["version"]["digest"]] = 5
    body = await ask(client, model="mine")
    assert body["data"][1]["data"] == vector_of(engine.requests[-1], 5).tolist()


async def test_refusals_name_the_field(client: httpx.AsyncClient, state: State) -> None:
    await engine_of(state, "bad", "good", kind=PoolingKind.LAST)
    error = await refusal(client, task="token_classify")
    assert error["param"] == "task" and "ForTokenClassification" in error["message"]
    assert (await refusal(client, task="token_paint"))["param"] == "task"
    assert (await refusal(client, task="token_embed", dimensions=99))["param"] == "dimensions"
    error = await refusal(client, task="token_embed", normalize=True, use_activation=False)
    assert error["param"] == "use_activation"
    await engine_of(state, "O", "B-PER")
    for path, fields in (("/classify", {}), ("/score", {"text_1": "a", "text_2": "b"})):
        error = await refusal(client, path, **fields)
        assert error["param"] == "model" and "classes of single tokens" in error["message"]
    assert (await refusal(client, task="classify"))["param"] == "task"
    assert (await refusal(client, task="token_classify", normalize=False))["param"] == "normalize"


async def test_one_answer_has_a_bounded_size(
    client: httpx.AsyncClient, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await engine_of(state, "O", "B-PER")
    monkeypatch.setattr(inputs, "MOST_NUMBERS", 6 * SIZE)
    assert await ask(client, input=[[5, 6, 7]] * 2, task="token_embed")
    before = len(engine.requests)
    error = await refusal(client, input=[[5, 6, 7]] * 2 + [[5]], task="token_embed")
    assert error["param"] == "input" and "56 numbers together" in error["message"]
    assert await ask(client, input=[[5, 6, 7]] * 3, task="token_classify")
    error = await refusal(client, input=[[5, 6, 7]] * 9, task="token_classify")
    assert error["param"] == "input" and "54 numbers together" in error["message"]
    assert len(engine.requests) == before + 3
