import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from loraplex.web.anthropic.schemas import MessagesRequest
from loraplex.web.ollama.schemas import OllamaChat, OllamaGenerate
from loraplex.web.openai.responses.schemas import ResponsesRequest
from loraplex.web.openai.schemas import ChatRequest, CompletionRequest
from loraplex.web.pooling.schemas import (
    ClassifyRequest,
    EmbeddingsRequest,
    PooledFields,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)

from .test_access import API

PATHS = {
    "/v1/chat/completions": "post",
    "/v1/completions": "post",
    "/v1/responses": "post",
    "/v1/responses/input_tokens": "post",
    "/v1/responses/{response_id}": "get",
    "/v1/responses/{response_id}/input_items": "get",
    "/v1/responses/{response_id}/cancel": "post",
    "/v1/messages": "post",
    "/v1/messages/count_tokens": "post",
    **dict.fromkeys(("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"), "post"),
    **dict.fromkeys(("/api/tags", "/api/ps", "/api/version"), "get"),
    "/v1/files": "post",
    "/v1/files/{file_id}": "get",
    "/v1/files/{file_id}/content": "get",
    "/v1/batches": "post",
    "/v1/batches/{batch_id}": "get",
    "/v1/batches/{batch_id}/cancel": "post",
    "/v1/embeddings": "post",
    "/pooling": "post",
    "/classify": "post",
    "/score": "post",
    "/v1/score": "post",
    "/rerank": "post",
    "/v1/rerank": "post",
    "/v2/rerank": "post",
    "/v1/models": "get",
    "/v1/models/{name}": "get",
    "/tokenize": "post",
    "/detokenize": "post",
    "/tokenizer_info": "get",
    "/load": "get",
    "/ping": "get",
    "/health": "get",
    "/ready": "get",
    "/version": "get",
    "/metrics": "get",
}


async def read(client: httpx.AsyncClient, path: str = "/openapi.json", key: str = "") -> dict[str, Any]:
    response = await client.get(path, headers={"authorization": key})
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    for part in value if isinstance(value, list) else ():
        yield from references(part)


async def test_the_public_api_is_described_and_nothing_else(client: httpx.AsyncClient) -> None:
    document = await read(client)
    assert document["openapi"].startswith("3.1")
    assert {path: next(iter(methods)) for path, methods in document["paths"].items()} == PATHS
    assert list(document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"], reference


async def test_the_management_api_has_a_document_of_its_own(client: httpx.AsyncClient, admin: dict[str, str]) -> None:
    document = await read(client, "/api/v1/openapi.json", admin["authorization"])
    described = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    routes = {route for route in API if "/api/v1/" in route or "lora_adapter" in route}
    assert described == routes - {"GET /api/v1/openapi.json"}
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"], reference


@pytest.mark.parametrize(
    ("path", "struct"),
    [
        ("/v1/chat/completions", ChatRequest),
        ("/v1/completions", CompletionRequest),
        ("/v1/responses", ResponsesRequest),
        ("/v1/messages", MessagesRequest),
        ("/v1/embeddings", EmbeddingsRequest),
        ("/pooling", PoolingRequest),
        ("/api/chat", OllamaChat),
        ("/api/generate", OllamaGenerate),
        ("/classify", ClassifyRequest),
        ("/v1/score", ScoreRequest),
        ("/v1/rerank", RerankRequest),
    ],
)
async def test_bodies_are_those_that_are_checked(
    client: httpx.AsyncClient, path: str, struct: type[msgspec.Struct]
) -> None:
    document = await read(client)
    operation = document["paths"][path]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert set(schema["properties"]) == set(struct.__struct_fields__)
    assert "model" in schema["required"]
    lines = "application/x-ndjson" if path.startswith("/api/") else "text/event-stream"
    streamed = set() if issubclass(struct, PooledFields) else {lines}
    assert set(operation["responses"]["200"]["content"]) == {"application/json", *streamed}
    assert "422" not in operation["responses"]
    assert operation["security"] == [{"key": []}, {"session": [], "csrf": []}]


async def test_a_page_for_people_loads_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    del client.headers["authorization"]
    page = await client.get("/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for path in PATHS:
        assert f" {path}</h2>" in page.text
    assert "<code>max_completion_tokens</code>" in page.text
    links = re.findall(r'(?:href|src)="([^"]*)"', page.text)
    assert links and all(link.startswith(("/", "#")) and not link.startswith("//") for link in links)
    assert (await client.get("/redoc")).status_code == 404
