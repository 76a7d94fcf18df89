"""What the dashboard costs those who generate: python -m benchmarks.open_browsers [--browsers 20] [--rounds 9]

A served model answers streams through HTTP, in turn with nobody on the dashboard and with so many browsers on it: each
holds the live stream of events and asks for its page every --reload seconds. The browsers are a process of their own
that reads bytes and draws nothing; what they take of the machine's processors is in the figure.
"""

import argparse
import asyncio
import http.client
import multiprocessing
import random
import re
import statistics
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Final

from loraplex.web.load import Server, run_round
from loraplex.web.sessions import COOKIE
from loraplex.web.settings import DEMO_MODEL

from .report import Row, show
from .server import serving

PASSWORD: Final = "only for this benchmark"
BASE: Final = "base"
LEAST_SHARE: Final = 0.98
STREAMS, PROMPT_TOKENS = 16, 32
PAGES: Final = ("/", "/adapters", "/cache", "/requests")


def logged_in(server: Server) -> str:
    """A session's cookie."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    own = f"http://{server.host}:{server.port}"
    form = urllib.parse.urlencode({"user": "admin", "password": PASSWORD})
    headers = {"content-type": "application/x-www-form-urlencoded", "origin": own}
    connection.request("POST", "/login", form, headers)
    answer = connection.getresponse()
    found = re.search(f"{COOKIE}=([^;]+)", answer.headers.get("set-cookie", ""))
    if found is None:
        raise RuntimeError(f"no session: {answer.status} {answer.read().decode()[:200]}")
    return f"{COOKIE}={found[1]}"


@contextmanager
def browsing(server: Server, cookie: str, count: int, reload_seconds: float) -> Iterator[None]:
    """So many browsers look at the dashboard meanwhile; it begins when all of them have their first event."""
    context = multiprocessing.get_context("spawn")
    opened = context.Semaphore(0)
    process = context.Process(target=browse, args=(server, cookie, count, reload_seconds, opened))
    process.start()
    try:
        for _ in range(count):
            if not opened.acquire(timeout=60):
                raise RuntimeError("the browsers did not open")
        yield
    finally:
        process.terminate()
        process.join()


def browse(server: Server, cookie: str, count: int, reload_seconds: float, opened: Semaphore) -> None:
    async def all_of_them() -> None:
        live = [watch(server, cookie, opened) for _ in range(count)]
        pages = [reload(server, cookie, PAGES[index % len(PAGES)], reload_seconds) for index in range(count)]
        await asyncio.gather(*live, *pages)

    asyncio.run(all_of_them())


async def watch(server: Server, cookie: str, opened: Semaphore) -> None:
    """The live stream, for ever."""
    reader, writer = await ask(server, cookie, "/dashboard/live")
    try:
        await reader.readuntil(b"data: ")
        opened.release()
        while await reader.read(1 << 16):
            pass
        raise RuntimeError("the live stream ended")
    finally:
        writer.close()


async def reload(server: Server, cookie: str, path: str, seconds: float) -> None:
    """Not all at once."""
    await asyncio.sleep(random.uniform(0, seconds))
    while True:
        reader, writer = await ask(server, cookie, path)
        while await reader.read(1 << 16):
            pass
        writer.close()
        await asyncio.sleep(seconds)


async def ask(server: Server, cookie: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    head = f"GET {path} HTTP/1.1\r\nhost: {server.host}:{server.port}\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{path}: {status.decode()}")
    return reader, writer


def speed(server: Server, tokens: int) -> float:
    """Tokens a second of all streams together."""
    draw = random.Random(0)
    prompts = [[draw.randrange(10, 250) for _ in range(PROMPT_TOKENS)] for _ in range(STREAMS)]
    return asyncio.run(run_round(server, [BASE] * STREAMS, prompts, tokens)).tokens_per_second


def measure(model: Path, browsers: int, rounds: int, tokens: int, reload_seconds: float) -> list[Row]:
    alone: list[float] = []
    watched: list[float] = []
    with serving(model, {}, served_name=BASE, admin_password=PASSWORD, enable_prefix_caching=False) as server:
        cookie = logged_in(server)
        speed(server, 8)
        for _ in range(rounds):
            alone.append(speed(server, tokens))
            with browsing(server, cookie, browsers, reload_seconds):
                watched.append(speed(server, tokens))
    ratio = statistics.median(with_them / without for with_them, without in zip(watched, alone, strict=True))
    return [
        Row("nobody on the dashboard", statistics.median(alone), "tokens/s"),
        Row(f"{browsers} browsers on it", statistics.median(watched), "tokens/s"),
        Row(f"{browsers} browsers / nobody", ratio, "x", LEAST_SHARE),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browsers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--reload", type=float, default=30, metavar="SECONDS")
    arguments = parser.parse_args()
    rows = measure(DEMO_MODEL, arguments.browsers, arguments.rounds, arguments.tokens, arguments.reload)
    show("open browsers", rows)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
