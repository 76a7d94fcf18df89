"""What the tests say to a server, and what they hear."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

FILES = {"config_sha256": "adapter_config.json", "weights_sha256": "adapter_model.safetensors"}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LOOKS = 0.05
"""Seconds between two looks at what is waited for."""


def put_files(http: httpx.Client, name: str, folder: Path) -> dict[str, str]:
    """Send both files; the body that makes a version of them."""
    digests = {}
    for field, file in FILES.items():
        data = (folder / file).read_bytes()
        digests[field] = hashlib.sha256(data).hexdigest()
        headers = {"x-content-sha256": digests[field]}
        response = http.put(f"/api/v1/adapters/{name}/files/{file}", content=data, headers=headers)
        assert response.status_code == 201, response.text
    return digests


def upload(http: httpx.Client, name: str, folder: Path) -> dict[str, Any]:
    """Send both files and make a version of them; the server's answer."""
    response = http.post(f"/api/v1/adapters/{name}/versions", json=put_files(http, name, folder))
    assert response.status_code == 201, response.text
    answer: dict[str, Any] = response.json()
    return answer


def greedy(model: str, prompt: Any, count: int, **fields: Any) -> dict[str, Any]:
    """Body of a completion that always says the same, and all of it."""
    body = {"model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
    return body | {"skip_special_tokens": False} | fields


async def complete(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(COMPLETIONS, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def text_of(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    return str((await complete(http, body))["choices"][0]["text"])


async def events(http: httpx.AsyncClient, body: dict[str, Any], path: str = COMPLETIONS) -> AsyncIterator[str]:
    """The data of each event of a stream, as it comes."""
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


async def streamed_text(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """The text of a stream that ended well."""
    data = [event async for event in events(http, body)]
    assert data[-1] == "[DONE]"
    chunks = [json.loads(event) for event in data[:-1]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length", chunks[-1]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


async def engine_status(http: httpx.AsyncClient) -> dict[str, Any]:
    answer: dict[str, Any] = (await http.get("/api/v1/engine")).json()
    return answer


async def until(condition: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """Wait for the condition; the seconds that took."""
    started = time.monotonic()
    while not await condition():
        assert time.monotonic() < started + seconds, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(LOOKS)
    return time.monotonic() - started
