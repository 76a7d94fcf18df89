"""`adapters` in a request's body: the sum of several adapters on the base."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from .fake_engine import FakeEngine
from .test_adapters_api import add


@pytest.fixture(autouse=True)
def as_admin(client: httpx.AsyncClient, admin: dict[str, str]) -> None:
    client.headers.update(admin)


@pytest.fixture
async def digests(client: httpx.AsyncClient, adapter_folders: list[Path]) -> list[str]:
    answers = [await add(client, name, folder) for name, folder in zip(("sql", "json"), adapter_folders, strict=True)]
    return [answer.json()["version"]["digest"] for answer in answers]


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": "tiny", "prompt": "The dog", **fields})


async def test_names_and_scales_reach_the_engine(
    client: httpx.AsyncClient, engine: FakeEngine, digests: list[str]
) -> None:
    parts = [{"name": "sql", "scale": 0.7}, {"name": "json@1", "scale": -0.3}]
    response = await ask(client, adapters=parts)
    assert response.status_code == 200, response.text
    assert [(ref.digest, ref.scale) for ref in engine.requests[-1].adapters] == list(
        zip(digests, (0.7, -0.3), strict=True)
    )
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "adapters": [{"name": "sql"}]}
    assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
    assert [(ref.digest, ref.scale) for ref in engine.requests[-1].adapters] == [(digests[0], 1.0)]


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"adapters": []}, 400, "adapters"),
        ({"adapters": [{"name": "sql"}] * 9}, 400, "adapters"),
        ({"adapters": [{"name": "sql"}, {"name": "sql"}]}, 400, "names an adapter twice"),
        ({"adapters": [{"name": "sql"}, {"name": "sql@1"}]}, 400, "mean the same adapter"),
        ({"adapters": [{"name": "sqll"}]}, 404, "sql"),
        ({"adapters": [{"name": "tiny"}]}, 400, "which is the base"),
        ({"adapters": [{"name": "sql", "scale": 1e9}]}, 400, "scale"),
        ({"adapters": [{"name": "sql", "scale": "much"}]}, 400, "scale"),
        ({"adapters": [{"name": "sql", "weight": 2}]}, 400, "weight"),
        ({"adapters": "sql"}, 400, "adapters"),
        ({"model": "sql", "adapters": [{"name": "json"}]}, 400, "set model to 'tiny'"),
    ],
)
async def test_refused_in_words(
    client: httpx.AsyncClient, digests: list[str], fields: dict[str, Any], status: int, words: str
) -> None:
    response = await ask(client, **fields)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert words in error["message"] and "adapters" in str(error["param"]), error


async def test_the_engines_refusal_names_the_adapter(
    client: httpx.AsyncClient, engine: FakeEngine, digests: list[str]
) -> None:
    engine.changing.add(digests[1])
    response = await ask(client, adapters=[{"name": "sql"}, {"name": "json"}])
    assert response.status_code == 400
    assert "adapter 'json' changes what the base itself computes" in response.json()["error"]["message"]


async def test_a_removed_adapter_is_named(client: httpx.AsyncClient, digests: list[str]) -> None:
    assert (await client.delete("/api/v1/adapters/json")).status_code < 300
    response = await ask(client, adapters=[{"name": "sql"}, {"name": "json"}])
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "adapters" and "json" in response.json()["error"]["message"]
