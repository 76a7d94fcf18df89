"""A request's task that is cancelled ends, at any step: else a cancelled batch or a shutdown waits for ever."""

import asyncio

import pytest

from loraplex.web.state import State

from .conftest import served
from .fake_engine import FakeEngine

MOST_STEPS = 500


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_cancelled_at_any_step(state: State, engine: FakeEngine, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "What?", "max_tokens": 2, "stream": stream}
    ended_by: list[bool] = []
    async with served(state) as client:
        for steps in range(MOST_STEPS):
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            for _ in range(steps):
                await asyncio.sleep(0)
            if asking.done():
                break
            asking.cancel()
            await asyncio.wait([asking], timeout=10)
            ended_by.append(asking.cancelled())
    assert len(ended_by) > 5
    assert all(ended_by), ended_by.index(False)
    assert not engine.running
