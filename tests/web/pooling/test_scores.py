"""POST /classify, /score and /rerank: heads of the base and of adapters, cosines of embeddings, forms, refusals."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from loraplex.engine.pooling.vectors import cosine
from loraplex.engine.pooling.wanted import ModelClasses, PairTemplate
from loraplex.web.state import State
from tests.engine.pooling.classifiers import make_headed_adapter

from ..fake_engine import FakeEngine
from ..fake_vectors import vector_of
from ..test_adapters_api import add, as_admin
from ..tools import use_template

__all__ = ["as_admin"]
DOCUMENTS = ["a lazy dog", "select name", "again and again"]
SCORE_PATHS, RERANK_PATHS = ("/score", "/v1/score"), ("/rerank", "/v1/rerank", "/v2/rerank")


async def ask(client: httpx.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def classifying(state: State, *labels: str) -> FakeEngine:
    assert isinstance(state.engine, FakeEngine)
    state.engine.classes = ModelClasses(labels=[*labels])
    await state.engine.start()
    return state.engine


@pytest.fixture
async def headed(client: httpx.AsyncClient, state: State, checkpoint: Path, tmp_path: Path) -> str:
    """Name of an adapter with a head of one class."""
    assert isinstance(state.engine, FakeEngine)
    made = await add(client, "judge", make_headed_adapter(tmp_path / "judge", checkpoint, classes=1))
    assert made.status_code == 201, made.text
    assert "score" in made.json()["version"]["target_modules"]
    state.engine.heads[made.json()["version"]["digest"]] = 1
    return "judge"


async def test_classify(client: httpx.AsyncClient, state: State) -> None:
    engine = await classifying(state, "bad", "so-so", "good")
    body = await ask(client, "/classify", model="tiny", input=["one", [5, 6]])
    vectors = [vector_of(request, 3) for request in engine.requests[-2:]]
    assert body["data"] == [
        {
            "index": index,
            "label": ["bad", "so-so", "good"][int(vector.argmax())],
            "probs": vector.tolist(),
            "num_classes": 3,
        }
        for index, vector in enumerate(vectors)
    ]
    assert sum(body["data"][0]["probs"]) == pytest.approx(1.0, abs=1e-6)
    raw = await ask(client, "/classify", input="one", activation=False)
    assert raw["data"][0]["probs"] == vector_of(engine.requests[-1], 3).tolist() != body["data"][0]["probs"]
    pooled = await ask(client, "/pooling", input="one", task="classify")
    assert pooled["data"] == [{"object": "pooling", "index": 0, "data": body["data"][0]["probs"]}]


async def test_an_adapters_head_classifies_on_any_base(client: httpx.AsyncClient, state: State, headed: str) -> None:
    assert isinstance(state.engine, FakeEngine)
    body = await ask(client, "/classify", model=headed, input="one")
    assert body["data"][0]["label"] is None and body["data"][0]["num_classes"] == 1
    refused = await client.post("/classify", json={"model": "tiny", "input": "one"})
    assert refused.status_code == 400 and "has a classification head" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == "model"


@pytest.mark.parametrize("path", SCORE_PATHS)
async def test_scores_by_embeddings(client: httpx.AsyncClient, state: State, path: str) -> None:
    assert isinstance(state.engine, FakeEngine)
    body = await ask(client, path, model="tiny", text_1="a fox", text_2=DOCUMENTS)
    query, *others = [vector_of(request) for request in state.engine.requests[-4:]]
    assert [entry["score"] for entry in body["data"]] == [cosine(query, other) for other in others]
    assert [(entry["index"], entry["object"]) for entry in body["data"]] == [(0, "score"), (1, "score"), (2, "score")]
    for sides in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        same = await ask(client, path, **{sides[0]: ["a fox"] * 3, sides[1]: DOCUMENTS})
        assert same["data"] == body["data"] and same["usage"] == body["usage"]


@pytest.mark.parametrize("by", ["base", "adapter"])
async def test_scores_by_a_head_of_one_class(client: httpx.AsyncClient, state: State, headed: str, by: str) -> None:
    assert isinstance(state.engine, FakeEngine)
    engine = await classifying(state, "fits") if by == "base" else state.engine
    model = "tiny" if by == "base" else headed
    body = await ask(client, "/score", model=model, text_1="a fox", text_2=DOCUMENTS)
    requests = engine.requests[-3:]
    assert [entry["score"] for entry in body["data"]] == [float(vector_of(request, 1)[0]) for request in requests]
    tokenizer = (await state.text_processors.of(None)).tokenizer
    assert [request.prompt_token_ids for request in requests] == [
        tokenizer.encode_pair("a fox", it) for it in DOCUMENTS
    ]
    ranked = await ask(client, "/rerank", model=model, query="a fox", documents=DOCUMENTS)
    scores = [entry["score"] for entry in body["data"]]
    assert [entry["relevance_score"] for entry in ranked["results"]] == sorted(scores, reverse=True)
    assert [scores[entry["index"]] for entry in ranked["results"]] == sorted(scores, reverse=True)


@pytest.mark.parametrize("path", RERANK_PATHS)
async def test_reranking_in_the_forms_of_jina_and_cohere(client: httpx.AsyncClient, path: str) -> None:
    given = [{"text": DOCUMENTS[0]}, DOCUMENTS[1], {"text": DOCUMENTS[2]}]
    body = await ask(client, path, model="tiny", query="a fox", documents=given)
    scores = [entry["relevance_score"] for entry in body["results"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    assert all(entry["document"] == {"text": DOCUMENTS[entry["index"]]} for entry in body["results"])
    assert body["usage"]["total_tokens"] > 0 and body["model"] == "tiny" and body["id"]
    best = await ask(client, path, query="a fox", documents=DOCUMENTS, top_n=1, return_documents=False)
    assert best["results"] == [{key: body["results"][0][key] for key in ("index", "relevance_score")}]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/score", {"text_1": "a"}, "text_1"),
        ("/score", {"text_1": "a", "documents": "b"}, "text_1"),
        ("/score", {}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_2"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"text_1": 5, "text_2": "a"}, "text_1"),
        ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a"}, "documents"),
        ("/rerank", {"documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": [{"image": "b"}]}, "documents"),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ("/rerank", {"query": "a", "documents": ["b"], "rank_fields": ["text"]}, "rank_fields"),
        ("/classify", {"input": []}, "input"),
        ("/classify", {"input": "a", "activation": True, "softmax": False}, "use_activation"),
        ("/pooling", {"input": "a", "task": "classify", "dimensions": 3}, "dimensions"),
        ("/pooling", {"input": "a", "use_activation": False, "normalize": True}, "use_activation"),
    ],
)
async def test_wrong_fields_are_refused_by_name(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json=fields)
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"].startswith(param), error


async def test_each_refused_field_has_its_own_advice(client: httpx.AsyncClient) -> None:
    for name, value, words in (
        ("max_tokens_per_doc", 5, "Cut the documents"),
        ("max_chunks_per_doc", 5, "Cut the documents"),
        ("rank_fields", ["text"], "put the fields that count into it"),
    ):
        refused = await client.post("/rerank", json={"query": "a", "documents": ["b"], name: value})
        assert words in refused.json()["error"]["message"]


def test_a_cosine_stays_between_its_ends() -> None:
    """Of equal vectors the quotient is beyond 1 by rounding, for some of them."""
    random = np.random.default_rng(0)
    vectors = [random.standard_normal(size).astype(np.float32) for size in (3, 8, 64) for _ in range(300)]
    assert all(cosine(vector, vector) <= 1.0 and cosine(vector, -vector) >= -1.0 for vector in vectors)
    assert all(cosine(vector, vector) == pytest.approx(1.0, abs=1e-12) for vector in vectors)


async def test_heads_of_several_classes_score_nothing(client: httpx.AsyncClient, state: State, headed: str) -> None:
    engine = await classifying(state, "bad", "good")
    for path, fields in (("/score", {"text_1": "a", "text_2": "b"}), ("/rerank", {"query": "a", "documents": ["b"]})):
        refused = await client.post(path, json=fields)
        assert refused.status_code == 400 and "has 2 classes" in refused.json()["error"]["message"]
        assert (await client.post(path, json={"model": headed, **fields})).status_code == 200
        digest = next(iter(engine.heads))
        engine.heads[digest] = 5
        late = await client.post(path, json={"model": headed, **fields})
        assert late.status_code == 400 and "has 5 classes" in late.json()["error"]["message"]
        engine.heads[digest] = 1


async def test_a_model_that_classifies_does_not_chat(client: httpx.AsyncClient, state: State) -> None:
    engine = await classifying(state, "bad", "good")
    engine.why_silent = "this model classifies"
    await engine.start()
    for path, fields in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {"prompt": "a", "echo": True, "max_tokens": 0, "logprobs": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        refused = await client.post(path, json={"model": "tiny", **fields})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "model")
        words = "Use /classify for classes or /v1/embeddings for vectors instead."
        assert error["message"] == f"This model classifies. {words}"


async def test_a_model_that_judges_by_tokens_gets_pairs_by_its_template(
    client: httpx.AsyncClient, state: State
) -> None:
    assert isinstance(state.engine, FakeEngine)
    state.engine.classes = ModelClasses(labels=["LABEL_0"], pairs=PairTemplate(system="Judge."))
    await state.engine.start()
    use_template(state, "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }} {% endfor %}")
    body = await ask(client, "/rerank", query="a fox", documents=["a dog"])
    [request] = state.engine.requests[-1:]
    tokenizer = (await state.text_processors.of(None)).tokenizer
    joined = "[system]Judge. [query]a fox [document]a dog "
    assert request.prompt_token_ids == tokenizer.encode(joined, add_special_tokens=False)
    assert body["results"][0]["relevance_score"] == float(vector_of(request, 1)[0])
    use_template(state, "{{ raise_exception('no such role') }}")
    refused = await client.post("/rerank", json={"query": "a fox", "documents": ["a dog"]})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "chat_template_error"
