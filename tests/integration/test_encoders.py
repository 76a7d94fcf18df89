"""Encoders behind a real server: one for vectors, asked by openai's client, and one for pairs, with their adapters."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from tests.engine.pooling.encoders import hidden_of, make_encoder, make_encoder_adapter, scores_of
from tests.engine.pooling.modules_file import write_modules

from .live_server import LiveServer
from .talk import upload

TEXTS = ["The quick brown fox", "", "again and again", "Zürich 😀"]
QUERY, DOCUMENTS = "which fox", ["the quick brown fox", "a lazy dog", "again"]
NEAR: dict[str, float] = {"abs": 1e-4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("encoders")


def started(folder: Path, base: Path, adapters: dict[str, Path]) -> Iterator[LiveServer]:
    server = LiveServer(folder, base)
    try:
        server.start()
        with server.client() as http:
            for name, adapter in adapters.items():
                findings = upload(http, name, adapter)["report"]["findings"]
                assert any("hidden states differ" in finding["message"] for finding in findings), findings
        yield server
        server.check_alive()
    finally:
        server.end()


@pytest.fixture(scope="module")
def vectors(folder: Path) -> Iterator[LiveServer]:
    """As all-MiniLM's folder is, with an adapter of the encoder and one that brings a head for four classes."""
    base = make_encoder(folder / "vectors", "bert")
    write_modules(base, "mean_tokens", normalized=True)
    (base / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    adapters = {
        "search": make_encoder_adapter(folder / "search", base, "bert"),
        "topics": make_encoder_adapter(folder / "topics", base, "bert", 4, seed=2),
    }
    yield from started(folder / "vectors", base, adapters)


@pytest.fixture(scope="module")
def pairs(folder: Path) -> Iterator[LiveServer]:
    """A cross-encoder of one class, and an adapter with a head of its own."""
    base = make_encoder(folder / "pairs", "bert", "classify", num_labels=1)
    yield from started(folder / "pairs", base, {"legal": make_encoder_adapter(folder / "legal", base, "bert", 1)})


def test_embeddings_are_those_of_sentence_transformers_and_peft(folder: Path, vectors: LiveServer) -> None:
    reference = SentenceTransformer(str(folder / "vectors"), device="cpu")
    whole, short = reference.encode(TEXTS), reference.encode(TEXTS, truncate_dim=16, normalize_embeddings=True)
    tokenizer = AutoTokenizer.from_pretrained(folder / "vectors")
    ids: list[list[int]] = [tokenizer(text)["input_ids"] for text in TEXTS]
    hidden = hidden_of(folder / "vectors", ids, folder / "search")
    adapted = torch.stack([normalize(one.mean(dim=0), dim=0) for one in hidden])
    with openai.OpenAI(base_url=f"{vectors.url}/v1", api_key=vectors.admin_key, max_retries=0) as client:

        def embed(model: str = "tiny", texts: Any = TEXTS, **fields: Any) -> Any:
            answer = client.embeddings.create(model=model, input=texts, **fields)
            assert answer.usage.prompt_tokens == sum(map(len, ids))
            return [one.embedding for one in answer.data]

        assert np.array(embed(encoding_format="float")) == pytest.approx(whole, **NEAR)
        packed = [np.frombuffer(base64.b64decode(one), "<f4") for one in embed(encoding_format="base64")]
        assert np.array(packed) == pytest.approx(whole, **NEAR)
        assert np.array(embed(dimensions=16)) == pytest.approx(short, **NEAR)
        assert np.array(embed(texts=ids)) == pytest.approx(whole, **NEAR)
        assert np.array(embed("search")) == pytest.approx(adapted.numpy(), **NEAR)
        assert np.abs(adapted.numpy() - whole).max() > 1e-2
        with pytest.raises(openai.BadRequestError, match="dimensions must be between 1 and 64"):
            embed(dimensions=65)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 64 tokens"):
            embed(texts="again " * 90)
        with pytest.raises(openai.BadRequestError, match=r"makes embeddings and generates no text.*/v1/embeddings"):
            client.chat.completions.create(model="search", messages=[{"role": "user", "content": "Hello"}])


def test_an_adapter_brings_classes(folder: Path, vectors: LiveServer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "vectors")
    inputs = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    expected = scores_of(folder / "vectors", inputs, 4, folder / "topics").softmax(dim=1)
    with vectors.client() as http:
        data = asked(http, "/classify", model="topics", input=TEXTS)["data"]
        assert http.post("/classify", json={"model": "tiny", "input": "a"}).status_code == 400
    assert np.array([one["probs"] for one in data]) == pytest.approx(expected.numpy(), **NEAR)


def test_pairs_are_scored_as_a_cross_encoder_does(folder: Path, pairs: LiveServer) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "pairs")
    inputs = [dict(tokenizer(QUERY, document)) for document in DOCUMENTS]
    masked = [{name: ids for name, ids in one.items() if name != "attention_mask"} for one in inputs]
    own = CrossEncoder(str(folder / "pairs"), device="cpu").predict([(QUERY, document) for document in DOCUMENTS])
    expected = {
        "tiny": [float(score) for score in own],
        "legal": scores_of(folder / "pairs", masked, 1, folder / "legal").sigmoid()[:, 0].tolist(),
    }
    with pairs.client() as http:
        for model, scores in expected.items():
            fields = {"model": model, "text_1": QUERY, "text_2": DOCUMENTS}
            data = asked(http, "/score", **fields)["data"]
            assert [one["score"] for one in data] == pytest.approx(scores, **NEAR)
            results = asked(http, "/rerank", model=model, query=QUERY, documents=DOCUMENTS, top_n=2)["results"]
            order = sorted(range(len(scores)), key=lambda index: -scores[index])[:2]
            assert [one["index"] for one in results] == order
            assert [one["relevance_score"] for one in results] == pytest.approx([scores[at] for at in order], **NEAR)
        assert expected["tiny"] != pytest.approx(expected["legal"], abs=1e-2)
        alone = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
        likely = scores_of(folder / "pairs", alone, 1).sigmoid()
        found = [one["probs"] for one in asked(http, "/classify", model="tiny", input=TEXTS)["data"]]
        assert np.array(found) == pytest.approx(likely.numpy(), **NEAR)
        refused = http.post("/v1/messages", json={"model": "legal", "messages": [], "max_tokens": 4})
        assert refused.status_code == 400
        body = {"model": "legal", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        said = http.post("/v1/messages", json=body).json()["error"]["message"]
        assert "generates no text" in said and "Use /score, /rerank or /classify for scores" in said


def asked(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
