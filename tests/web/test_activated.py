"""Adapters that act from invocation tokens on: a prompt without them is refused in words, whoever asks."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_adapter

from .fake_engine import FakeEngine
from .test_adapters_api import add

INVOCATION = "</s> check:"
"""With a special token, which must not get lost on the way to a person."""


@pytest.fixture(scope="session")
def tokens(checkpoint: Path) -> list[int]:
    return Tokenizer(checkpoint).encode(INVOCATION, add_special_tokens=False)


@pytest.fixture(scope="session")
def folder(checkpoint: Path, tokens: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("activated") / "checker"
    return make_adapter(target, checkpoint, rank=2, kinds=("q_proj",), alora_invocation_tokens=tokens)


@pytest.fixture(autouse=True)
async def checker(
    client: httpx.AsyncClient, admin: dict[str, str], folder: Path, adapter_folders: list[Path]
) -> dict[str, Any]:
    client.headers.update(admin)
    assert (await add(client, "plain", adapter_folders[0])).status_code == 201
    response = await add(client, "checker", folder)
    assert response.status_code == 201, response.text
    return response.json()  # type: ignore[no-any-return]


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def test_a_version_tells_its_invocation_tokens(
    client: httpx.AsyncClient, checker: dict[str, Any], tokens: list[int]
) -> None:
    assert checker["version"]["invocation_tokens"] == tokens
    findings = {finding["check"]: finding["message"] for finding in checker["report"]["findings"]}
    assert str(tokens) in findings["activation"]
    listed = (await client.get("/api/v1/adapters/plain")).json()
    assert listed["versions"][0]["invocation_tokens"] == []


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("completions", {"model": "checker", "prompt": "The dog"}, "prompt"),
        ("completions", {"model": "checker", "prompt": ["</s> check: one", "The dog"]}, "prompt"),
        ("completions", {"model": "checker", "prompt": "The dog", "stream": True}, "prompt"),
        (
            "completions",
            {"model": "tiny", "prompt": "A", "adapters": [{"name": "plain"}, {"name": "checker"}]},
            "prompt",
        ),
        ("chat/completions", {"model": "checker@1", **chat("The dog")}, "messages"),
    ],
)
async def test_a_prompt_without_them_is_refused_by_name(
    client: httpx.AsyncClient, engine: FakeEngine, tokens: list[int], path: str, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(f"/v1/{path}", json=fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("adapter_not_invoked", param)
    name = fields["model"] if fields["model"] != "tiny" else "checker"
    assert f"adapter '{name}' acts from its invocation tokens on" in error["message"]
    assert repr(INVOCATION) in error["message"] and str(tokens) in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize("model", ["checker", "plain", "tiny"])
async def test_a_prompt_with_them_is_served(client: httpx.AsyncClient, engine: FakeEngine, model: str) -> None:
    fields = {"model": model, "prompt": "The dog </s> check: again"}
    response = await client.post("/v1/completions", json=fields)
    assert response.status_code == 200, response.text
    assert len(engine.requests[-1].adapters) == (model != "tiny")
