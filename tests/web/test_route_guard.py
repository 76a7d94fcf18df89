"""What is known of a route's versions: the guard that takes one back, metrics, and whose fault a failure is."""

import asyncio
import threading
from collections.abc import Sequence

import httpx
import pytest

from loraplex.engine.ipc.client import RequestRejected
from loraplex.registry.adapters.routes import guard_of
from loraplex.web.inference.watch import is_fault
from loraplex.web.percentile import percentile
from loraplex.web.routing.route_metrics import MOST_LANES, RouteCollector
from loraplex.web.routing.tallies import Figures, Lane, Tallies
from loraplex.web.routing.verdict import judge
from loraplex.web.state import State

from .fake_engine import FakeEngine
from .routed import ALIASES, PROD, VERSION, ask, digests, put

__all__ = ["digests"]


async def test_the_guard_takes_a_failing_candidate_out_for_good(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    await put(client, f"{PROD}/guard", max_error_rate=0.1, min_requests=4)
    for _ in range(3):
        assert (await ask(client, "sql@prod", max_tokens=10**6)).status_code == 400
    engine.fails = {digests[1]}
    for _ in range(4):
        assert (await ask(client, "sql@prod")).status_code == 500
    await state.guard.look()
    assert (await ask(client, "sql@prod")).headers[VERSION] == "sql@1"
    route = (await client.get(PROD)).json()
    assert "failed 4 of 4 requests (100.0 %)" in route["trip"]["reason"] and "allows 10.0 %" in route["trip"]["reason"]
    assert (route["weights"], route["updated_by"]) == ({"1": 100}, "guard")
    entry = (await client.get("/api/v1/audit?limit=1")).json()["data"][0]
    assert (entry["actor"], entry["action"], entry["subject"]) == ("guard", "alias.trip", "adapter:sql@prod")
    overview = (await client.get("/")).text
    assert "sql@prod was rolled back" in overview and "/adapters/sql#aliases" in overview
    engine.fails = set()
    await state.guard.look()
    assert (await client.get(PROD)).json()["weights"] == {"1": 100}, "it never puts one back"
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    await state.guard.look()
    assert (await client.get(PROD)).json()["weights"]["2"] == 100, "a new share is judged by new requests"
    assert "sql@prod was rolled back" not in (await client.get("/")).text


@pytest.mark.parametrize(("stable_requests", "kept"), [(1, False), (3, False), (4, True)])
def test_a_stable_version_excuses_failures_only_where_enough_is_known_of_it(stable_requests: int, kept: bool) -> None:
    """One unlucky request of it would shield any candidate."""
    candidate, stable = Figures(requests=40, errors=20), Figures(requests=stable_requests, errors=stable_requests)
    breach = judge(guard_of({"max_error_rate": 0.1, "min_requests": 4}), 2, candidate, stable)
    assert (breach is None) is kept


async def test_a_slow_candidate_loses_to_a_fast_stable_version(
    client: httpx.AsyncClient, state: State, digests: list[str]
) -> None:
    await put(client, PROD, version=1, weights={"1": 50, "2": 50})
    await put(client, f"{PROD}/guard", max_first_token_ratio=2, min_requests=5)
    (candidate,) = state.registry.snapshots.current.adapters["default"]["sql"].routes["prod"].candidates
    stable, slow = (Lane("default", "sql", "prod", 1), Lane("default", "sql", "prod", 2, candidate.since))
    for _ in range(5):
        state.tallies.note(slow, False, 0.25, 1.0, 4)
    await state.guard.look()
    assert (await client.get(PROD)).json()["weights"]["2"] == 50, "nothing to compare with yet"
    for _ in range(5):
        state.tallies.note(stable, False, 0.1, 1.0, 4)
    await state.guard.look()
    route = (await client.get(PROD)).json()
    assert route["weights"] == {"1": 100}
    assert "p95 time to first token of 250 ms" in route["trip"]["reason"]
    assert "2 times the stable version's 100 ms" in route["trip"]["reason"]


async def test_the_event_loop_runs_on_while_figures_are_taken(
    client: httpx.AsyncClient, state: State, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(client, PROD, version=1, weights={"1": 50, "2": 50})
    await put(client, f"{PROD}/guard", max_first_token_ms=1000, min_requests=1)
    (candidate,) = state.registry.snapshots.current.adapters["default"]["sql"].routes["prod"].candidates
    state.tallies.note(Lane("default", "sql", "prod", 2, candidate.since), False, 0.25, 1.0, 4)
    taken: list[bool] = []

    def waits(values: Sequence[float], share: float) -> float:
        """Done only when the loop has done something else meanwhile."""
        taken.append(moved.wait(5))
        return percentile(values, share)

    monkeypatch.setattr("loraplex.web.routing.tallies.percentile", waits)
    for path in ("", PROD, ALIASES, "/adapters/sql", "/adapters/sql/aliases"):
        moved = threading.Event()
        asyncio.get_running_loop().call_later(0.02, moved.set)
        if path:
            assert (await client.get(path)).status_code == 200
        else:
            await state.guard.look()
    assert len(taken) >= 5 and all(taken)


async def test_metrics_of_a_route_by_version(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    engine.resident, engine.fails = set(digests), {digests[1]}
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    for _ in range(3):
        await ask(client, "sql@prod")
    engine.fails = set()
    await ask(client, "sql@prod")
    text = (await client.get("/metrics")).text
    labels = 'role="candidate",route="sql@prod",version="2"'

    def value(name: str, more: str = "") -> float:
        found = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
        wanted = sorted(filter(None, [*labels.split(","), *more.split(",")]))
        (line,) = [one for one in found if sorted(one.partition("{")[2].partition("}")[0].split(",")) == wanted]
        return float(line.rpartition(" ")[2])

    assert value("loraplex_route_requests_total", 'outcome="error"') == 3
    assert value("loraplex_route_requests_total", 'outcome="ok"') == 1
    assert value("loraplex_route_latency_seconds_count") == 1
    assert value("loraplex_route_first_token_seconds_bucket", 'le="+Inf"') >= 1
    await client.delete(PROD)
    await state.guard.look()
    assert 'route="sql@prod"' not in (await client.get("/metrics")).text, "a route that is gone has no series"


async def test_series_of_routes_are_bounded() -> None:
    tallies = Tallies()
    for number in range(MOST_LANES + 50):
        tallies.note(Lane("default", "sql", f"alias-{number}", 1), False, 0.1, 1.0, 4)
    requests, *_ = RouteCollector(tallies).collect()
    assert len(requests.samples) == 2 * MOST_LANES


async def test_a_candidate_that_the_engine_refuses_is_the_candidates_fault(
    client: httpx.AsyncClient, state: State, engine: FakeEngine, digests: list[str]
) -> None:
    await put(client, PROD, version=1, weights={"1": 0, "2": 100})
    engine.unloadable.add(digests[1])
    lanes = state.registry.snapshots.current.adapters["default"]["sql"].routes["prod"].candidates
    lane = Lane("default", "sql", "prod", 2, lanes[0].since)
    state.reconciler._registered.pop(digests[1])
    engine.registered.pop(digests[1])
    engine.refused.add(digests[1])
    assert (await ask(client, "sql@prod")).json()["error"]["code"] == "adapter_unavailable"
    assert state.tallies.figures(lane, 600).errors == 1


@pytest.mark.parametrize(("kind", "fault"), [("invalid", False), ("overloaded", False), ("internal", True)])
def test_whose_fault_it_is(kind: str, fault: bool) -> None:
    assert is_fault(RequestRejected(kind, "words")) is fault
