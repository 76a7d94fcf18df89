"""One request of very many answers, and others of the same tenant and key that come while it runs."""

import asyncio
import json
import time

import httpx

from .live_server import BASE, LiveServer
from .talk import complete, engine_status, events, greedy, until

PROMPTS, CHOICES = 256, 16


class Flood:
    """A stream of 4,096 answers of 48 tokens, read as it comes."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.ended = 0
        prompts = [[number + 3, 7, 9] for number in range(PROMPTS)]
        body = greedy(BASE, prompts, 48, n=CHOICES, temperature=1.0)
        self.task = asyncio.create_task(self._read(http, body))

    async def _read(self, http: httpx.AsyncClient, body: dict[str, object]) -> None:
        async for event in events(http, body):
            if event != "[DONE]":
                self.ended += json.loads(event)["choices"][0]["finish_reason"] is not None

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_a_request_of_256_prompts_and_16_choices_delays_no_other_of_its_key(
    server: LiveServer, http: httpx.AsyncClient
) -> None:
    flood = Flood(http)
    try:

        async def crowded() -> bool:
            return bool((await engine_status(http))["status"]["waiting"] > 200)

        await until(crowded, 60, "the queue is long")
        for number in range(3):
            before, began = flood.ended, time.monotonic()
            answer = await complete(http, greedy(BASE, [5, 6, 7, number], 1))
            print(f"{time.monotonic() - began:.2f} s to an answer of one token")
            assert answer["usage"]["completion_tokens"] == 1
            assert flood.ended - before < PROMPTS * CHOICES / 10, "it waited for the flood"
        assert not flood.task.done()
    finally:
        await flood.end()
