"""A light load generator: raw HTTP/1.1 and server-sent events over asyncio, cheap for the machine it shares."""

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """One streamed completion, in seconds."""

    first: float
    """From sending until the first token."""
    total: float
    tokens: int

    @property
    def per_token(self) -> float:
        """Seconds per output token after the first (TPOT)."""
        return (self.total - self.first) / max(1, self.tokens - 1)


@dataclass(frozen=True)
class Round:
    """All completions of one round, and the wall time they took together."""

    timings: list[Timing]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(timing.tokens for timing in self.timings) / self.seconds

    @property
    def first_token(self) -> float:
        return statistics.median(timing.first for timing in self.timings)

    @property
    def per_token(self) -> float:
        return statistics.median(timing.per_token for timing in self.timings)


@dataclass(frozen=True)
class Server:
    host: str
    port: int
    key: str


async def run_round(
    server: Server, models: list[str], prompts: list[list[int]], max_tokens: int, expected_tokens: bool = True
) -> Round:
    """Stream one completion per prompt, all at once; models[i] answers prompts[i]."""
    started = time.perf_counter()
    timings = await asyncio.gather(
        *(stream_completion(server, model, prompt, max_tokens) for model, prompt in zip(models, prompts, strict=True))
    )
    seconds = time.perf_counter() - started
    if expected_tokens and any(timing.tokens != max_tokens for timing in timings):
        raise RuntimeError(f"a completion ended early: {[timing.tokens for timing in timings]}")
    return Round(list(timings), seconds)


async def stream_completion(
    server: Server, model: str, prompt: list[int], max_tokens: int, arrived: Callable[[], None] = lambda: None
) -> Timing:
    """POST /v1/completions with stream and usage; raises RuntimeError on anything but a complete stream. `arrived` is
    called for each chunk."""
    body = json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {server.host}:{server.port}\r\nauthorization: Bearer {server.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode()
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        started = time.perf_counter()
        writer.write(head + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await reader.read(4000)).decode()}")
        first = last_chunk = 0.0
        tokens = 0
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                return Timing(first, last_chunk, tokens)
            arrived()
            last_chunk = time.perf_counter() - started
            first = first or last_chunk
            if b'"usage"' in line and b'"completion_tokens"' in line:
                usage = json.loads(line[6:]).get("usage")
                tokens = usage["completion_tokens"] if usage else tokens
        raise RuntimeError("the stream ended without [DONE]")
    finally:
        writer.close()
