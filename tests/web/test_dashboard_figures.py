"""The figures and words behind the dashboard's live state."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from loraplex.engine.status import AdapterStatus
from loraplex.web.access.caller import Caller
from loraplex.web.access.permissions import permissions_of_user
from loraplex.web.admin.figures.cache_history import CacheHistory
from loraplex.web.admin.figures.known_adapters import Known
from loraplex.web.admin.figures.live_state import live_state
from loraplex.web.admin.figures.traffic import Traffic
from loraplex.web.admin.overview.live import Live
from loraplex.web.admin.usage.usage_rows import version_words
from loraplex.web.admin.words import activity_words, targets_words, tile_words
from loraplex.web.observability.request_log import FinishedRequest
from loraplex.web.state import State
from loraplex.web.targets import grouped
from loraplex.web.units import size_words, span_words
from tests.lora.signatures import LINEARS

from .fake_engine import FakeEngine
from .test_adapters_api import add


def finished(at: float, **fields: Any) -> FinishedRequest:
    plain = {
        "tenant": "default",
        "request_id": "r",
        "model": "m",
        "digests": (),
        "status": "stop",
        "first_token": 0.1,
        "duration": 1.0,
    }
    counts = {"prompt_tokens": 1, "completion_tokens": 1, "cached_tokens": 0}
    return FinishedRequest(**{"at": at, **plain, **counts, **fields})


def operator() -> Caller:
    return Caller("default", "user:admin", permissions_of_user("admin", "default"))


def test_traffic_counts_each_request_once() -> None:
    traffic = Traffic()
    recent = [finished(at, first_token=at / 10) for at in (1.0, 2.0)]
    traffic.tick(reversed(recent), 100)
    recent.append(finished(3.0, status="error", first_token=None))
    traffic.tick(reversed(recent), 150)
    traffic.tick(reversed(recent), None)
    traffic.tick(reversed(recent), 20)
    figures = traffic.figures()
    assert (figures["requests_per_minute"], figures["errors_per_minute"]) == (3, 1)
    assert figures["tokens_per_second"] == "5.0"
    assert figures["first_token_ms"] == "200"
    assert sum(figures["history"]["requests_per_minute"]) == 3
    assert len(figures["history"]["first_token_ms"]) == 60


@pytest.mark.parametrize(
    ("count", "slow", "shown"), [(2, 1, "5,000"), (11, 1, "5,000"), (20, 1, "100"), (20, 2, "5,000")]
)
def test_a_p95_hides_no_more_than_five_percent(count: int, slow: int, shown: str) -> None:
    traffic = Traffic()
    firsts = [5.0] * slow + [0.1] * (count - slow)
    traffic.tick([finished(float(at), first_token=first) for at, first in enumerate(firsts, 1)][::-1], 0)
    figures = traffic.figures()
    assert figures["first_token_ms"] == shown
    assert f"{max(filter(None, figures['history']['first_token_ms'])):,.0f}" == shown


def test_traffic_forgets_after_five_minutes() -> None:
    traffic = Traffic()
    traffic.tick([finished(1.0)], 0)
    for _ in range(60):
        traffic.tick([], 0)
    assert traffic.figures()["requests_per_minute"] == 0
    assert traffic.figures()["first_token_ms"] == "100"
    for _ in range(240):
        traffic.tick([], 0)
    assert traffic.figures()["first_token_ms"] == "–"
    assert traffic.seen


async def test_who_does_not_operate_the_server_sees_its_own_traffic(state: State) -> None:
    """What the others' numbers are, and that their requests fail, is nobody's business."""
    live = Live(state)
    people = {
        tenant: Caller(tenant, "user:x", permissions_of_user("admin", tenant)) for tenant in ("default", "acme", "new")
    }
    for second in range(3):
        state.metrics.recent += [
            finished(second + 0.1, tenant="acme", completion_tokens=40),
            *(finished(second + 0.2, tenant="beta", status="error", first_token=None) for _ in range(3)),
        ]
        live.note()
    seen = {tenant: json.loads(live.document(caller)) for tenant, caller in people.items()}
    counts = {
        tenant: (it["traffic"]["requests_per_minute"], it["traffic"]["errors_per_minute"])
        for tenant, it in seen.items()
    }
    assert counts == {"default": (12, 9), "acme": (3, 0), "new": (0, 0)}
    assert seen["acme"]["traffic"]["tokens_per_second"] == "12.0"
    assert (seen["acme"]["traffic"]["seen"], seen["new"]["traffic"]["seen"]) == (True, False)
    failing = {tenant: "failed in the last" in json.dumps(it["attention"]) for tenant, it in seen.items()}
    assert failing == {"default": True, "acme": False, "new": False}


async def test_the_legend_names_the_running_one_of_adapters_that_share_a_colour(
    client: httpx.AsyncClient, engine: FakeEngine, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = engine.status
    assert status is not None
    status.adapters = [AdapterStatus(digest=f"{place:064x}", state="registered") for place in range(600)]
    status.adapters[250].running = 1
    status.block_map = bytes([0, 1, 2, 3])
    monkeypatch.setattr(FakeEngine, "status", status)
    known = {f"{place:064x}": Known(Mock(), Mock(), f"adapter-{place}", "") for place in range(600)}
    monkeypatch.setattr("loraplex.web.admin.figures.live_state.known_adapters", lambda *_: known)
    document = live_state(state, Traffic(), CacheHistory(), operator())
    assert document["blocks"]["sentence"].startswith("2 of ")
    assert document["blocks"]["legend"] == {3: "adapter-250"}
    assert document["residency"]["states"] == {}
    assert len(json.dumps(document)) < 5000


async def test_versions_in_memory_are_told_apart(
    client: httpx.AsyncClient, admin: dict[str, str], engine: FakeEngine, state: State, adapter_folders: list[Path]
) -> None:
    """In tiles and usage; another adapter may have the bytes of one of them."""
    client.headers.update(admin)
    for name, folder in (("json", adapter_folders[1]), ("sql", adapter_folders[0]), ("sql", adapter_folders[1])):
        digest = (await add(client, name, folder)).json()["version"]["digest"]
        engine.resident.add(digest)
    tiles = live_state(state, Traffic(), CacheHistory(), operator())["residency"]["tiles"]
    assert {(tile["path"], tile["label"]) for tile in tiles} == {
        ("/adapters/sql", f"sql@{number}") for number in (1, 2)
    }
    words = version_words(state.snapshots, "default")
    assert (words["json", digest], words["sql", digest]) == ("version 1", "version 2")
    engine.resident.discard(digest)
    [tile] = live_state(state, Traffic(), CacheHistory(), operator())["residency"]["tiles"]
    assert tile["label"] == "sql"


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (612_288, "612 kB"), (5e6, "5.0 MB"), (2e12, "2000.00 GB")],
)
def test_sizes_in_words(count: float, words: str) -> None:
    assert size_words(count) == words


def test_what_an_adapter_in_memory_is_and_does() -> None:
    status = AdapterStatus(digest="d", state="resident", rank=8, bytes=221_184)
    assert (tile_words(status), activity_words(status)) == ("rank 8 · 221 kB", "not used yet")
    status.pinned, status.last_used_seconds_ago = True, 600.0
    assert (tile_words(status), activity_words(status)) == ("rank 8 · 221 kB · pinned", "idle 10 min")
    status.running = 2
    assert activity_words(status) == "2 running"


def test_spans_and_targets_in_words() -> None:
    assert [span_words(seconds) for seconds in (5, 600, 7200, 200_000)] == ["5 s", "10 min", "2 h", "2 days"]
    assert targets_words(["v_proj", "q_proj"], LINEARS) == "q, v"
    assert targets_words(["lm_head", "down_proj"], LINEARS) == "down, lm_head"


def test_experts_are_told_together() -> None:
    experts = [f"mlp.experts.{number}.{kind}" for number in range(128) for kind in ("gate_proj", "up_proj")]
    linears = ["q_proj", *experts, *(f"mlp.experts.{number}.down_proj" for number in range(128))]
    assert targets_words(["q_proj", *experts], linears) == "q, experts 0–127 (gate_proj, up_proj)"
    assert targets_words(linears, linears) == "all linears"
    some = [f"mlp.experts.{number}.up_proj" for number in (3, 5, 6, 7)]
    assert grouped(["q_proj", *some]) == ["q_proj", "experts 3, 5–7 (up_proj)"]
    assert grouped(experts[::4]) == ["experts 0–126, 64 experts of them (gate_proj)"]
