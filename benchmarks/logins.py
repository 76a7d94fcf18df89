"""What 100 wrong logins at once cost everybody else, and how long they take: python -m benchmarks.logins

One client asks for short completions, one after the other: first alone, then while the logins are under way.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
from collections import Counter
from typing import Final

from loraplex.web.settings.settings import DEMO_MODEL

from .client import Client
from .report import Row, show
from .server import Serving, serving

FORM: Final = {"content-type": "application/x-www-form-urlencoded"}
COMPLETION: Final = json.dumps({"model": "demo", "prompt": "Hello", "max_tokens": 8}).encode()


def complete(server: Serving, count: int, taken: list[float]) -> None:
    """Adds the seconds of each to `taken`."""
    client = Client(server)
    for _ in range(count):
        started = time.perf_counter()
        client.ask("POST", "/v1/completions", COMPLETION)
        taken.append(time.perf_counter() - started)


def log_in(server: Serving, number: int, statuses: list[int]) -> None:
    """With a wrong password, each as another user."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=300)
    origin = {"origin": f"http://{server.host}:{server.port}"}
    connection.request("POST", "/login", f"name=user{number}&password=wrong{number}xxxxxxxx", FORM | origin)
    answer = connection.getresponse()
    answer.read()
    statuses.append(answer.status)


def measure(logins: int, completions: int) -> tuple[list[float], list[float], float, Counter[int]]:
    """Seconds of completions alone and beside the logins, those of all logins, and how many had which status."""
    alone, beside, statuses = list[float](), list[float](), list[int]()
    with serving(DEMO_MODEL, {}, served_name="demo") as server:
        complete(server, completions, alone)
        threads = [threading.Thread(target=log_in, args=(server, number, statuses)) for number in range(logins)]
        other = threading.Thread(target=complete, args=(server, completions, beside))
        started = time.perf_counter()
        other.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        other.join()
    return alone, beside, seconds, Counter(statuses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logins", type=int, default=100)
    parser.add_argument("--completions", type=int, default=60)
    chosen = parser.parse_args()
    alone, beside, seconds, statuses = measure(chosen.logins, chosen.completions)
    told = ", ".join(f"{count} with {status}" for status, count in sorted(statuses.items()))
    show(
        "logins",
        [
            Row(f"{chosen.logins} wrong logins at once: {told}", seconds, "s"),
            Row("a completion alone: median", 1000 * statistics.median(alone), "ms"),
            Row("a completion beside them: median", 1000 * statistics.median(beside), "ms"),
        ],
    )


if __name__ == "__main__":
    main()
