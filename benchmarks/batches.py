"""What a batch costs the users beside it: python -m benchmarks.batches [--rounds 4 --seconds 20 --clients 2]

The demo's model. Clients that ask short questions, with a pause after each answer, measure the time to the first token
without a batch and with one, in turn. A round of each kind begins when the batch runs, or has ended.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import threading
import time
from typing import Any, Final

from loraplex.web.percentile import percentile
from loraplex.web.settings.settings import DEMO_MODEL

from .client import Client
from .report import Row, show
from .server import Serving, serving

GOAL: Final = 1.2
"""Times the 99th percentile without a batch, at most."""
LINES: Final = 5000
LEAD_SECONDS: Final = 2.0
"""Of each round, not counted."""
PAUSE_SECONDS: Final = 0.2
"""After an answer, on average."""
PROMPT: Final = "A driver called Lina paid 80 euros for 15 white kites in Paris. "


def body(number: int, tokens: int, **more: Any) -> dict[str, Any]:
    prompt = f"{number} " + PROMPT * (1 + number % 3)  # nothing of it is in the prefix cache
    return {"model": "demo", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": number, **more}


class Batch:
    """Runs until it is cancelled."""

    def __init__(self, http: Client) -> None:
        self._http = http
        lines = [
            {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body(n, 48)} for n in range(LINES)
        ]
        content = "\n".join(map(json.dumps, lines))
        head = '--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        head += '--x\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        form = f"{head}{content}\r\n--x--\r\n".encode()
        file = http.ask("POST", "/v1/files", form, content_type="multipart/form-data; boundary=x")
        new = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        self._id = http.ask("POST", "/v1/batches", json.dumps(new).encode())["id"]
        while self.state()["request_counts"]["completed"] < 1:
            time.sleep(0.1)

    def state(self) -> Any:
        return self._http.ask("GET", f"/v1/batches/{self._id}")

    def cancel(self) -> int:
        """How many lines have run."""
        self._http.ask("POST", f"/v1/batches/{self._id}/cancel", b"")
        while self.state()["status"] != "cancelled":
            time.sleep(0.1)
        return int(self.state()["request_counts"]["completed"])


def users(server: Serving, clients: int, seconds: float, seed: int) -> list[float]:
    """Milliseconds to each first token."""
    taken: list[float] = []

    def ask(client: int) -> None:
        chance, connection = random.Random(f"{seed} {client}"), Client(server)
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            number += 1
            taken.append(connection.first_token_ms(body(1_000_000 * seed + 10_000 * client + number, 24)))
            time.sleep(chance.uniform(0, 2 * PAUSE_SECONDS))

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="of each kind")
    parser.add_argument("--seconds", type=float, default=20, help="of a round")
    parser.add_argument("--clients", type=int, default=2)
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    lines, load = 0, [os.getloadavg()[0]]
    with serving(DEMO_MODEL, {}, served_name="demo") as server:
        seeds = itertools.count(1)
        users(server, chosen.clients, 5, seed=next(seeds))
        for round in range(chosen.rounds):
            for kind in ("alone", "beside") if round % 2 else ("beside", "alone"):
                batch = Batch(Client(server)) if kind == "beside" else None
                # What ran while all was quiet ends first.
                users(server, chosen.clients, LEAD_SECONDS, seed=next(seeds))
                found[kind] += users(server, chosen.clients, chosen.seconds, seed=next(seeds))
                lines += 0 if batch is None else batch.cancel()
            load.append(os.getloadavg()[0])
    rows = [Row(f"requests of users, {kind}", len(taken), "") for kind, taken in found.items()]
    for share in (0.5, 0.99):
        alone, beside = (percentile(found[kind], share) for kind in ("alone", "beside"))
        name = f"first token, p{100 * share:.0f}"
        rows += [Row(f"{name}, alone", alone, "ms"), Row(f"{name}, beside a batch", beside, "ms")]
        goal = GOAL if share > 0.9 else None
        rows.append(Row(f"{name}: beside / alone", beside / alone, "x", goal, at_least=False))
    rows.append(Row("lines of batches meanwhile", lines / (chosen.rounds * chosen.seconds), "a second"))
    rows.append(Row("load of the machine, mean", statistics.mean(load), "processes"))
    show("users beside a batch", rows)


if __name__ == "__main__":
    main()
