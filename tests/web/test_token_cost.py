"""What a streamed token costs in this process: engine message, text, metrics, encoding and every layer of the app."""

import asyncio
import json
import time
from typing import Any

import pytest

from loraplex.web.app import create_app
from loraplex.web.state import State

from . import fake_engine
from .conftest import KEY
from .fake_engine import FakeEngine

TOKENS = 2000
MOST_MICROSECONDS = 60.0


async def test_cost_of_a_streamed_token(state: State, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_engine, "MAX_MODEL_LEN", TOKENS + 100)
    app = create_app(state)
    async with app.router.lifespan_context(app):
        await state.started.wait()
        await _stream(app, 10)
        costs = [await _stream(app, TOKENS) for _ in range(3)]
    assert min(costs) * 1e6 <= MOST_MICROSECONDS


async def _stream(app: Any, tokens: int) -> float:
    """Processor seconds for each token of one stream."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    chunks: list[bytes] = []
    started = time.process_time()
    await app(_scope(), _receive(json.dumps(body).encode()), _send(chunks))
    seconds = time.process_time() - started
    assert chunks[-2].endswith(b"data: [DONE]\n\n")
    return seconds / tokens


def _scope() -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"authorization", f"Bearer {KEY}".encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


def _receive(body: bytes) -> Any:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    return receive


def _send(chunks: list[bytes]) -> Any:
    async def send(message: dict[str, Any]) -> None:
        chunks.append(message.get("body", b""))

    return send
