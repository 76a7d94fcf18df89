"""How fast a full server says no: python -m benchmarks.refusals [--streams 400] [--rate 50] [--burst 1000]

The demo's model answers --streams streams that run at once, and as many more requests wait as may. Newcomers then come
at --rate a second, and each is refused; /metrics and /ready are asked beside them. At the end --burst newcomers come in
the same moment. Streams and newcomers are two processes of their own, which take part of the same processors.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from loraplex.web.load_generator import Server
from loraplex.web.settings.settings import DEMO_MODEL

from .report import Row, show
from .server import serving

BASE: Final = "base"
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 1900
BLOCK_TOKENS: Final = 16
PROBES: Final = ("/metrics", "/ready")
REFUSAL_GOAL_MS, PROBE_GOAL_MS = 50.0, 100.0
NEWCOMER_CHARS: Final = 1000
"""Of a newcomer's prompt: what a chat with some history has."""


def request_of(server: Server, prompt: list[int] | str, tokens: int = OUTPUT_TOKENS) -> bytes:
    body = {"model": BASE, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return _head(server, "POST", "/v1/completions", json.dumps(body).encode())


def _head(server: Server, method: str, path: str, body: bytes = b"") -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1", f"host: {server.host}:{server.port}", f"authorization: Bearer {server.key}",
        f"content-length: {len(body)}", "connection: close",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def timed(server: Server, request: bytes, due: float) -> tuple[int, float]:
    """Status, and milliseconds from `due` until the answer's head was there."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(request)
        status = int((await reader.readline()).split()[1])
        return status, 1000 * (time.perf_counter() - due)
    finally:
        writer.close()


def hold_streams(server: Server, count: int, told: Connection) -> None:
    """A process: `count` streams that never end; tells when all are accepted, and each second how many tokens came."""
    asyncio.run(_hold(server, count, told))


async def _hold(server: Server, count: int, told: Connection) -> None:
    begun, chunks = 0, 0

    async def stream(number: int) -> None:
        nonlocal begun, chunks
        draw = random.Random(number)
        while True:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(request_of(server, [draw.randrange(10, 250) for _ in range(PROMPT_TOKENS)]))
            begun += 1
            while data := await reader.read(1 << 16):
                chunks += data.count(b"data: ")
            writer.close()

    tasks = [asyncio.create_task(stream(number)) for number in range(count)]
    while begun < count:
        await asyncio.sleep(0.1)
    while not any(task.done() for task in tasks):
        told.send(chunks)
        await asyncio.sleep(1)
    await asyncio.gather(*tasks)


def ask(server: Server, rate: float, seconds: float, burst: int, told: Connection) -> None:
    """A process: newcomers and probes, on time whatever the answers take; tells (what, status, milliseconds) of all."""
    told.send(asyncio.run(_ask(server, rate, seconds, burst)))


async def _ask(server: Server, rate: float, seconds: float, burst: int) -> list[tuple[str, int, float]]:
    found: list[tuple[str, int, float]] = []
    newcomer = request_of(server, "word " * (NEWCOMER_CHARS // 5), 16)

    async def one(what: str, request: bytes, due: float) -> None:
        found.append((what, *await timed(server, request, due)))

    async def steady(what: str, request: bytes, each: float) -> None:
        started, pending = time.perf_counter(), []
        for number in range(int(seconds / each)):
            due = started + number * each
            await asyncio.sleep(due - time.perf_counter())
            pending.append(asyncio.create_task(one(what, request, due)))
        await asyncio.gather(*pending)

    probes = (steady(path, _head(server, "GET", path), 0.2) for path in PROBES)
    await asyncio.gather(steady("steady", newcomer, 1 / rate), *probes)
    now = time.perf_counter()
    await asyncio.gather(*(one("burst", newcomer, now) for _ in range(burst)))
    return found


def measure(
    streams: int, queue: int, rate: float, seconds: float, burst: int
) -> tuple[list[tuple[str, int, float]], float]:
    blocks = (streams + 1) * (-(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_TOKENS) + 1)
    limits = {"max_num_seqs": streams, "max_queue": queue, "num_kv_blocks": blocks, "max_concurrent_requests": 4096}
    with serving(DEMO_MODEL, {}, served_name=BASE, **limits) as server:
        where = Server(server.host, server.port, server.key)
        streaming, tokens = _process(hold_streams, where, streams + queue)
        tokens.recv()
        time.sleep(10)
        before, began = _newest(tokens), time.perf_counter()
        asking, answers = _process(ask, where, rate, seconds, burst)
        found = answers.recv()
        speed = (_newest(tokens) - before) / (time.perf_counter() - began)
        for process in (asking, streaming):
            process.terminate()
            process.join()
    return found, speed


def _process(work: Callable[..., None], *arguments: object) -> tuple[multiprocessing.Process, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours  # type: ignore[return-value]


def _newest(told: Connection) -> int:
    chunks: int = told.recv()
    while told.poll():
        chunks = told.recv()
    return chunks


def rows_of(found: list[tuple[str, int, float]], speed: float) -> list[Row]:
    rows = [Row("tokens of the streams, as events", speed, "/s")]
    for what, status, goal in (
        ("steady", 503, REFUSAL_GOAL_MS),
        ("burst", 503, None),
        *((p, 200, PROBE_GOAL_MS) for p in PROBES),
    ):
        taken = sorted(ms for name, got, ms in found if (name, got) == (what, status))
        others = sum((name == what) and got != status for name, got, _ in found)
        rows.append(
            Row(f"{what}: median of {len(taken)} with {status}, {others} without", statistics.median(taken), "ms")
        )
        rows.append(Row(f"{what}: p99", taken[int(0.99 * (len(taken) - 1))], "ms", goal, at_least=False))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--burst", type=int, default=1000)
    chosen = parser.parse_args()
    found, speed = measure(chosen.streams, chosen.queue, chosen.rate, chosen.seconds, chosen.burst)
    show("refusals", rows_of(found, speed))


if __name__ == "__main__":
    main()
