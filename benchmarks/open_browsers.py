"""What the dashboard costs those who generate: python -m benchmarks.open_browsers [--demo] [--pairs 40]

A served model (random with the dimensions of 0.5B, or the demo's) answers streams through HTTP without a pause, in
spans with nobody on the dashboard and with --browsers on it, in turn: each holds the live stream of events and asks for
its page every --reload seconds. The browsers are a process of their own that reads bytes and draws nothing
(browsers.py); what it takes of the processors is in the ratio, and said apart.
"""

import argparse
import asyncio
import http.client
import os
import random
import re
import statistics
import subprocess
import sys
import time
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from threading import Thread
from typing import Final

from loraplex.web.access.sessions import COOKIE
from loraplex.web.load_generator import Server, stream_completion
from loraplex.web.settings.settings import DEMO_MODEL

from .checkpoints import HALF_BILLION, base_checkpoint
from .report import Row, show
from .server import ROOT, Serving, serving

PASSWORD: Final = "only for this benchmark"
BASE: Final = "base"
LEAST_SHARE: Final = 0.98
STREAMS, PROMPT_TOKENS = 16, 32
IDLE_SECONDS: Final = 20.0
WARM_SECONDS: Final = 10.0
SETTLING_SECONDS: Final = 0.5
"""Before a span: twenty browsers that open at once are no state that lasts."""
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


class Browsers:
    """A process of its own, so that its processor time is known apart."""

    def __init__(self, server: Server, cookie: str, count: int, reload_seconds: float) -> None:
        command = [sys.executable, "-m", "benchmarks.browsers", server.host, str(server.port), cookie]
        self._process = subprocess.Popen(
            [*command, str(count), str(reload_seconds), *PAGES], stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT
        )

    def tell(self, word: str) -> str:
        """Once it is done; what it answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the browsers ended with exit code {self._process.wait()}")
        return answer

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()


class Streams:
    """So many completions at once, each followed by the next until the end, out of step with each other."""

    def __init__(self, server: Server, tokens: int) -> None:
        self._chunks = 0
        self._server, self._tokens = server, tokens
        self._failure: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def arrived(self) -> int:
        """Chunks so far. RuntimeError once a stream has failed."""
        if self._failure is not None:
            raise RuntimeError("a stream failed") from self._failure
        return self._chunks

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join()

    def _run(self) -> None:
        self._all = self._loop.create_task(self._stream_all())
        try:
            self._loop.run_until_complete(self._all)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self._failure = error

    async def _stream_all(self) -> None:
        await asyncio.gather(*map(self._stream, range(STREAMS)))

    async def _stream(self, number: int) -> None:
        draw = random.Random(number)
        tokens = max(1, (number + 1) * self._tokens // STREAMS)
        while True:
            prompt = [draw.randrange(10, 250) for _ in range(PROMPT_TOKENS)]
            await stream_completion(self._server, BASE, prompt, tokens, self._count)
            tokens = self._tokens

    def _count(self) -> None:
        self._chunks += 1


@dataclass(frozen=True)
class Share:
    """Of one core, and the tokens/s meanwhile."""

    api: float
    browsers: float
    speed: float


def observe(server: Serving, streams: Streams | None, browsers: Browsers | None, seconds: float) -> Share:
    if browsers is not None:
        browsers.tell("open")
    time.sleep(SETTLING_SECONDS)
    began, used, chunks = time.perf_counter(), processor_seconds(server.pid), streams.arrived() if streams else 0
    time.sleep(seconds)
    seconds, used = time.perf_counter() - began, processor_seconds(server.pid) - used
    speed = (streams.arrived() - chunks) / seconds if streams else 0.0
    theirs = 0.0 if browsers is None else float(browsers.tell("close"))
    return Share(used / seconds, theirs / (seconds + SETTLING_SECONDS), speed)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(model: Path, count: int, pairs: int, seconds: float, tokens: int, reload_seconds: float) -> list[Row]:
    """Spans with and without browsers in turn, each kind first in every second pair."""
    alone: list[Share] = []
    watched: list[Share] = []
    with serving(model, {}, served_name=BASE, admin_password=PASSWORD, enable_prefix_caching=False) as server:
        browsers = Browsers(server, logged_in(server), count, reload_seconds)
        streams = Streams(server, tokens)
        observe(server, streams, browsers, WARM_SECONDS)
        for number in range(pairs):
            for with_browsers in (False, True) if number % 2 else (True, False):
                seen = observe(server, streams, browsers if with_browsers else None, seconds)
                (watched if with_browsers else alone).append(seen)
        streams.end()
        resting = observe(server, None, None, IDLE_SECONDS)
        looked_at = observe(server, None, browsers, IDLE_SECONDS)
        browsers.end()
    ratios = [with_them.speed / without.speed for with_them, without in zip(watched, alone, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return [
        Row("nobody on the dashboard", statistics.median(one.speed for one in alone), "tokens/s"),
        Row(f"{count} browsers on it", statistics.median(one.speed for one in watched), "tokens/s"),
        Row(f"{count} browsers / nobody, {pairs} pairs", middle, "x", LEAST_SHARE),
        Row("the pairs' quartiles are apart by", high - low, "x"),
        Row("API process while it serves, nobody", 100 * statistics.mean(one.api for one in alone), "% of a core"),
        Row("the same, with browsers", 100 * statistics.mean(one.api for one in watched), "% of a core"),
        Row("what reads for the browsers", 100 * statistics.mean(one.browsers for one in watched), "% of a core"),
        Row("API process at rest, nobody", 100 * resting.api, "% of a core"),
        Row("the same, with browsers", 100 * looked_at.api, "% of a core"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browsers", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5, help="of a span with or without browsers")
    parser.add_argument("--tokens", type=int, default=512, help="of each completion")
    parser.add_argument("--reload", type=float, default=30, metavar="SECONDS")
    parser.add_argument("--demo", action="store_true", help="the demo's model, whose steps are short and uneven")
    arguments = parser.parse_args()
    given = (arguments.browsers, arguments.pairs, arguments.seconds, arguments.tokens, arguments.reload)
    rows = measure(DEMO_MODEL if arguments.demo else base_checkpoint(HALF_BILLION), *given)
    show("open browsers", rows)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
