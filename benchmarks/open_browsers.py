"""What the dashboard costs those who generate: python -m benchmarks.open_browsers [--browsers 20] [--rounds 21]

A served model answers streams through HTTP, in turn with nobody on the dashboard and with so many browsers on it: each
holds the live stream of events and asks for its page every --reload seconds. The browsers are a process of their own
that reads bytes and draws nothing (browsers.py); what it takes of the processors is in the ratio, and said apart.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Final

from loraplex.web.load import Server, run_round
from loraplex.web.sessions import COOKIE
from loraplex.web.settings import DEMO_MODEL

from .report import Row, show
from .server import ROOT, Serving, serving

PASSWORD: Final = "only for this benchmark"
BASE: Final = "base"
LEAST_SHARE: Final = 0.98
STREAMS, PROMPT_TOKENS = 16, 32
IDLE_SECONDS: Final = 20.0
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


@dataclass(frozen=True)
class Share:
    """Of one core, and the tokens/s meanwhile."""

    api: float
    browsers: float
    speed: float = 0.0


def observe(server: Serving, browsers: Browsers | None, work: Callable[[], float]) -> Share:
    if browsers is not None:
        browsers.tell("open")
    began, used = time.perf_counter(), processor_seconds(server.pid)
    speed = work()
    seconds, used = time.perf_counter() - began, processor_seconds(server.pid) - used
    theirs = 0.0 if browsers is None else float(browsers.tell("close"))
    return Share(used / seconds, theirs / seconds, speed)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(seconds: float) -> float:
    time.sleep(seconds)
    return 0.0


def speed(server: Server, tokens: int, times: int) -> float:
    """Tokens a second of all streams together, so many times one after the other."""
    draw = random.Random(0)
    prompts = [[draw.randrange(10, 250) for _ in range(PROMPT_TOKENS)] for _ in range(STREAMS)]
    rounds = [asyncio.run(run_round(server, [BASE] * STREAMS, prompts, tokens)) for _ in range(times)]
    return times * STREAMS * tokens / sum(one.seconds for one in rounds)


def measure(model: Path, count: int, rounds: int, tokens: int, times: int, reload_seconds: float) -> list[Row]:
    """Rounds with and without browsers in turn, each kind first in every second pair."""
    alone: list[Share] = []
    watched: list[Share] = []
    with serving(model, {}, served_name=BASE, admin_password=PASSWORD, enable_prefix_caching=False) as server:
        browsers = Browsers(server, logged_in(server), count, reload_seconds)
        work = partial(speed, server, tokens, times)
        observe(server, browsers, partial(speed, server, tokens, 1))
        for number in range(rounds):
            for with_browsers in (False, True) if number % 2 else (True, False):
                seen = observe(server, browsers if with_browsers else None, work)
                (watched if with_browsers else alone).append(seen)
        resting = observe(server, None, partial(idle, IDLE_SECONDS))
        looked_at = observe(server, browsers, partial(idle, IDLE_SECONDS))
        browsers.end()
    ratio = statistics.median(
        with_them.speed / without.speed for with_them, without in zip(watched, alone, strict=True)
    )
    return [
        Row("nobody on the dashboard", statistics.median(one.speed for one in alone), "tokens/s"),
        Row(f"{count} browsers on it", statistics.median(one.speed for one in watched), "tokens/s"),
        Row(f"{count} browsers / nobody", ratio, "x", LEAST_SHARE),
        Row("API process while it serves, nobody", 100 * statistics.median(one.api for one in alone), "% of a core"),
        Row("the same, with browsers", 100 * statistics.median(one.api for one in watched), "% of a core"),
        Row("what reads for the browsers", 100 * statistics.median(one.browsers for one in watched), "% of a core"),
        Row("API process at rest, nobody", 100 * resting.api, "% of a core"),
        Row("the same, with browsers", 100 * looked_at.api, "% of a core"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browsers", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--times", type=int, default=1, help="completions of each stream in a round")
    parser.add_argument("--reload", type=float, default=30, metavar="SECONDS")
    arguments = parser.parse_args()
    given = (arguments.browsers, arguments.rounds, arguments.tokens, arguments.times, arguments.reload)
    rows = measure(DEMO_MODEL, *given)
    show("open browsers", rows)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
