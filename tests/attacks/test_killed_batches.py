"""kill -9 of the API process at random moments of batches: each line has one answer, and counts once."""

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import httpx
import pytest

from loraplex.registry.batches.views import ENDED
from loraplex.registry.registry import Registry
from loraplex.registry.usage.usage import UsageQuery
from loraplex.web.settings.settings import Settings
from tests.campaign import Campaign
from tests.integration.live_server import NO_TLS
from tests.web.fake_engine import BASE_SENTENCE

from . import killed_server
from .test_killed_server import KEY, folder, model, processes, settings

__all__ = ["folder", "model", "processes", "settings"]

KILLS, PARTS = 200, 5
"""A run takes one of so many parts of the kills."""
LONGEST_LIFE = 0.8
"""Seconds after the first answer at which it is killed at the latest."""
MOST_UNFINISHED = 3
DELAY = 0.01
"""Seconds that the engine takes for a token."""


class Client:
    """Makes batches, now and then cancels one, and looks at them until the connection breaks."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.made: dict[str, int] = {}
        """Batch -> its lines."""
        self.cancelled: set[str] = set()
        self.counts: dict[str, int] = {}
        """Batch -> lines that it has told to have ended."""
        self.unfinished = 0

    def work(self, http: httpx.Client) -> None:
        while True:
            batches = http.get("/v1/batches", params={"limit": 100}).raise_for_status().json()["data"]
            running = [batch for batch in batches if batch["status"] not in ENDED]
            for batch in batches:
                self._look(batch)
            if len(running) < MOST_UNFINISHED:
                self._make(http)
            elif self._chance.random() < 0.02:
                self._cancel(http, self._chance.choice(running)["id"])

    def _look(self, batch: dict[str, Any]) -> None:
        """What was told of a batch is never taken back."""
        counts = batch["request_counts"]
        ended = counts["completed"] + counts["failed"]
        assert ended >= self.counts.get(batch["id"], 0)
        self.counts[batch["id"]] = ended
        self.unfinished += 0 < ended < counts["total"]

    def _make(self, http: httpx.Client) -> None:
        number = self._chance.randint(1, 120)
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", lines(number))}}
        file = http.post("/v1/files", **form).raise_for_status().json()  # type: ignore[arg-type]
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        self.made[http.post("/v1/batches", json=body).raise_for_status().json()["id"]] = number

    def _cancel(self, http: httpx.Client, id: str) -> None:
        if http.post(f"/v1/batches/{id}/cancel").status_code == 200:
            self.cancelled.add(id)


def lines(count: int) -> bytes:
    """The last one is refused."""
    bodies = [{"model": "model", "prompt": "a", "max_tokens": 1 + index % 7} for index in range(count - 1)] + [{}]
    line = {"method": "POST", "url": "/v1/completions"}
    rows = [json.dumps(line | {"custom_id": str(index), "body": body}) for index, body in enumerate(bodies)]
    return "\n".join(rows).encode()


@contextmanager
def server(processes: ForkServerContext, settings: Settings, model: Path) -> Iterator[tuple[httpx.Client, Any]]:
    """Talks to a new process on the data folder, which is killed in the end if it lives."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = processes.Process(target=killed_server.serve, args=(listener, settings, model, DELAY))
        process.start()
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=600, trust_env=False, verify=NO_TLS) as http:
        http.get("/health").raise_for_status()
        try:
            yield http, process
        finally:
            process.kill()
            process.join()


def test_each_line_has_one_answer_and_counts_once(
    processes: ForkServerContext, settings: Settings, model: Path, campaign: Campaign
) -> None:
    client, chance = Client(campaign.seed), random.Random(f"{campaign.seed} of the moments")
    kills = len(campaign.part(KILLS, PARTS))
    for _ in range(kills):
        with server(processes, settings, model) as (http, process):
            kill = threading.Timer(chance.uniform(0, LONGEST_LIFE), process.kill)
            kill.start()
            with pytest.raises(httpx.TransportError):
                client.work(http)
            kill.join()
    with server(processes, settings, model) as (http, _):
        until_all_have_ended(http)
        check(http, client, settings)
    assert client.unfinished > campaign.enough(KILLS, PARTS), "they were killed in the middle of batches"


def until_all_have_ended(http: httpx.Client) -> None:
    deadline = time.monotonic() + 120
    while any(batch["status"] not in ENDED for batch in all_of(http)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def all_of(http: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    more = True
    while more:
        params = {"limit": 100} | ({"after": found[-1]["id"]} if found else {})
        page = http.get("/v1/batches", params=params).raise_for_status().json()  # type: ignore[arg-type]
        found, more = found + page["data"], page["has_more"]
    return found


def check(http: httpx.Client, client: Client, settings: Settings) -> None:
    """Of all batches together, as the files tell and as the ledger does."""
    batches, used = all_of(http), Counter[str]()
    assert client.made.keys() | client.cancelled <= {batch["id"] for batch in batches}
    for batch in batches:
        used += check_batch(http, batch, client)
    registry = Registry.open(settings.database, settings.data_dir / "artifacts", free_floor=0)
    [booked] = registry.usage.sums(UsageQuery(by=()))
    assert {name: getattr(booked, name) for name in ("requests", "prompt_tokens", "completion_tokens")} == used
    assert (booked.errors, booked.unknown) == (0, 0)
    assert not [*registry.store.batches.iterdir()]
    named = {file.id for file in registry.files.list("default").items}
    assert {path.name for path in registry.store.files.iterdir()} >= named
    registry.close()


def check_batch(http: httpx.Client, batch: dict[str, Any], client: Client) -> Counter[str]:
    """What the batch's lines have used."""
    good, bad = (results(http, batch[f"{kind}_file_id"]) for kind in ("output", "error"))
    counts, total = batch["request_counts"], client.made.get(batch["id"], batch["request_counts"]["total"])
    assert (len(good), len(bad)) == (counts["completed"], counts["failed"])
    assert not good.keys() & bad.keys()
    if batch["status"] == "completed":
        assert good.keys() == {str(index) for index in range(total - 1)} and bad.keys() == {str(total - 1)}
    else:
        assert batch["status"] == "cancelled", batch
    used = Counter(requests=0)
    for custom_id, row in good.items():
        body = row["response"]["body"]
        assert body["usage"]["completion_tokens"] == 1 + int(custom_id) % 7
        assert BASE_SENTENCE.startswith(body["choices"][0]["text"])
        used["requests"] += 1
        used.update({name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens")})
    return used


def results(http: httpx.Client, file: str | None) -> dict[str, dict[str, Any]]:
    rows = [] if file is None else http.get(f"/v1/files/{file}/content").raise_for_status().text.splitlines()
    found = {row["custom_id"]: row for row in map(json.loads, rows)}
    assert len(found) == len(rows), "a line was answered twice"
    return found
