"""An adapter with two versions, and what asks for one and changes its routes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio

from .test_adapters_api import add

ALIASES = "/api/v1/adapters/sql/aliases"
PROD = f"{ALIASES}/prod"
VERSION = "x-loraplex-version"


@pytest_asyncio.fixture
async def digests(client: httpx.AsyncClient, admin: dict[str, str], adapter_folders: list[Path]) -> list[str]:
    """`sql` has two versions."""
    client.headers.update(admin)
    return [(await add(client, "sql", folder)).json()["version"]["digest"] for folder in adapter_folders]


async def ask(client: httpx.AsyncClient, model: str, user: str | None = None, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "hi", "max_tokens": 4, **({"user": user} if user else {}), **fields}
    return await client.post("/v1/completions", json=body)


async def put(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.put(path, json=body)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
