"""Quotas over HTTP: what is reserved, settled and given back, what is said of it, and what survives a restart."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from loraplex.registry.access.quotas import Quota
from loraplex.registry.usage.sums import total_of
from loraplex.registry.usage.usage import UsageQuery
from loraplex.web.observability.refusal_log import GENERATING
from loraplex.web.quotas.quotas import Quotas
from loraplex.web.quotas.rate_limits import span
from loraplex.web.settings.settings import Settings
from loraplex.web.state import State, open_state

from ..conftest import served
from ..fake_engine import FakeEngine
from ..test_streams import http, leave, quiet, server  # noqa: F401

Headers = dict[str, str]
PROMPT = [5, 6, 7, 8]
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions /api/chat": CHAT,
    "/v1/messages": CHAT | {"max_tokens": 4},
    "/v1/completions /api/generate /api/embeddings": {"prompt": "hi"},
    "/v1/responses /v1/embeddings /api/embed /pooling /classify": {"input": "hi"},
    "/score /v1/score": {"text_1": "hi", "text_2": "ho"},
    "/rerank /v1/rerank /v2/rerank": {"query": "hi", "documents": ["ho"]},
}
COUNTED = {path: body for paths, body in BODIES.items() for path in paths.split()}
UNCOUNTED = {"/tokenize": {"prompt": "hi"}, "/v1/messages/count_tokens": CHAT}
TENANCY = (Path(__file__).parents[3] / "docs" / "tenancy.md").read_text("utf-8")
LATE = datetime(2026, 11, 22, 23, 59, 30, tzinfo=UTC)


class Clock:
    """Both of them: seconds, and the time of day."""

    def __init__(self, quotas: Quotas) -> None:
        self.seconds = 1000.0
        quotas.clock = lambda: self.seconds
        quotas.now = lambda: LATE + timedelta(seconds=self.seconds - 1000)


@pytest.fixture
def clock(state: State) -> Clock:
    return Clock(state.quotas)


@pytest.fixture
def limited(state: State) -> Callable[..., Headers]:
    """Headers of a new inference key with these limits."""

    def make(**limits: int) -> Headers:
        made = state.registry.keys.create("limited", ["inference"], actor="system", quota=Quota(**limits))
        state.registry.snapshots.refresh()
        return {"authorization": f"Bearer {made.token}"}

    return make


async def complete(client: httpx.AsyncClient, headers: Headers, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "ignore_eos": True} | fields
    return await client.post("/v1/completions", json=body, headers=headers)


def sums(state: State) -> dict[str, Any]:
    state.quotas.ledger.flush()
    return msgspec.structs.asdict(total_of(state.registry.usage.sums(UsageQuery(by=()))))


def nothing_is_held(state: State) -> bool:
    meters = state.quotas._meters.values()
    return state.requests.taken == 0 and all((meter.running, meter.held) == (0, 0) for meter in meters)


def limits_in(answer: httpx.Response) -> dict[str, str]:
    prefix = "x-ratelimit-"
    return {name.removeprefix(prefix): value for name, value in answer.headers.items() if name.startswith(prefix)}


async def test_requests_per_minute(client: httpx.AsyncClient, limited: Any, clock: Clock, state: State) -> None:
    key = limited(requests_per_minute=2)
    first = await complete(client, key)
    assert (first.status_code, first.headers["x-ratelimit-limit-requests"]) == (200, "2")
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"] == "30s"
    assert "x-ratelimit-limit-tokens" not in first.headers
    assert (await complete(client, key, stream=True)).headers["x-ratelimit-remaining-requests"] == "0"
    refused = await complete(client, key)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "requests")
    assert (refused.headers["retry-after"], refused.headers["x-ratelimit-reset-requests"]) == ("30", "1m0s")
    assert "2 requests per minute" in error["message"]
    assert (await complete(client, limited())).status_code == 200
    clock.seconds += 30
    assert (await complete(client, key)).status_code == 200
    assert sums(state)["requests"] == 4 and nothing_is_held(state)


@pytest.mark.parametrize("path", sorted(GENERATING))
async def test_every_way_to_the_model_counts(client: httpx.AsyncClient, limited: Any, path: str) -> None:
    """And the page of tenants says so."""
    key = limited(requests_per_minute=1)
    assert (await complete(client, key)).status_code == 200
    for other, body in UNCOUNTED.items():
        assert (await client.post(other, json={"model": "tiny"} | body, headers=key)).status_code == 200
        assert f"`{other}`" in TENANCY
    refused = await client.post(path, json={"model": "tiny"} | COUNTED[path], headers=key)
    assert refused.status_code == 429 and "may use 1 requests per minute" in refused.text
    assert f"`{path}`" in TENANCY.partition("| what counts |")[2].partition("\n\n")[0]


async def test_tokens_are_reserved_and_settled(client: httpx.AsyncClient, limited: Any, clock: Clock) -> None:
    key = limited(tokens_per_minute=120)
    first = await complete(client, key, max_tokens=56)
    assert first.json()["usage"]["total_tokens"] == 60
    assert first.headers["x-ratelimit-remaining-tokens"] == "60"
    short = await complete(client, key, max_tokens=56, ignore_eos=False)
    used = short.json()["usage"]["total_tokens"]
    assert used < 60 and short.headers["x-ratelimit-remaining-tokens"] == "0"
    refused = await complete(client, key, max_tokens=56)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (429, "tokens")
    assert refused.headers["x-ratelimit-remaining-tokens"] == str(60 - used)
    assert int(refused.headers["retry-after"]) == -(-used * 60 // 120)
    small = await complete(client, key, max_tokens=1)
    assert small.status_code == 200
    never = await complete(client, key, prompt=[PROMPT, PROMPT], n=2, max_tokens=50)
    assert (never.status_code, never.json()["error"]["code"]) == (429, "request_too_large")
    assert never.headers["x-should-retry"] == "false"
    assert "208 tokens" in never.json()["error"]["message"]


async def test_concurrency(client: httpx.AsyncClient, limited: Any, engine: FakeEngine, state: State) -> None:
    key, engine.delay = limited(max_concurrent=1), 0.02
    running = asyncio.create_task(complete(client, key))
    while not engine.running:
        await asyncio.sleep(0.001)
    refused = await complete(client, key)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert limits_in(refused) == {"limit-concurrent": "1", "remaining-concurrent": "0"}
    assert limits_in(await running) == {"limit-concurrent": "1", "remaining-concurrent": "0"}, "its own place is taken"
    assert (await complete(client, key)).status_code == 200
    assert nothing_is_held(state)


async def test_a_tenants_limits_hold_for_all_its_keys(client: httpx.AsyncClient, limited: Any, state: State) -> None:
    state.registry.tenants.set_quota("default", Quota(requests_per_minute=3), actor="system")
    one, other = limited(requests_per_minute=2), limited()
    first = await complete(client, one)
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert [(await complete(client, other)).status_code for _ in range(3)] == [200, 200, 429]
    refused = await complete(client, one)
    assert "This tenant may use 3 requests" in refused.json()["error"]["message"]


async def test_a_day_ends_at_midnight(client: httpx.AsyncClient, limited: Any, clock: Clock) -> None:
    key = limited(tokens_per_day=25)
    first = await complete(client, key)
    assert limits_in(first) == {"limit-tokens-day": "25", "remaining-tokens-day": "15", "reset-tokens-day": "30s"}
    assert (await complete(client, key, stream=True)).headers["x-ratelimit-remaining-tokens-day"] == "5"
    refused = await complete(client, key)
    assert limits_in(refused) == {"limit-tokens-day": "25", "remaining-tokens-day": "5", "reset-tokens-day": "30s"}
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert refused.headers["retry-after"] == "30" and "25 tokens a day" in refused.json()["error"]["message"]
    assert (await complete(client, key, max_tokens=1)).status_code == 200
    assert (await complete(client, key, max_tokens=1)).status_code == 429
    clock.seconds += 30
    assert (await complete(client, key)).status_code == 200


async def test_daily_counts_survive_a_restart(
    settings: Settings, checkpoint: Path, state: State, limited: Any, engine: FakeEngine
) -> None:
    key = limited(tokens_per_day=25)
    async with served(state) as client:
        assert (await complete(client, key)).status_code == 200
    again = open_state(settings, checkpoint, FakeEngine(engine._tokenizer))
    async with served(again) as client:
        assert (await complete(client, key)).status_code == 200
        assert (await complete(client, key)).status_code == 429
    elsewhere = open_state(settings, checkpoint, FakeEngine(engine._tokenizer))
    async with served(elsewhere) as client:
        assert (await complete(client, key)).status_code == 429


async def test_what_a_refusal_or_a_failure_held_is_given_back(
    client: httpx.AsyncClient, limited: Any, engine: FakeEngine, state: State, clock: Clock
) -> None:
    key = limited(max_concurrent=1, tokens_per_minute=1000, tokens_per_day=1000)
    assert (await complete(client, key, model="none")).status_code == 404
    assert (await complete(client, key, max_tokens=5000)).status_code == 400
    engine.max_queue = 0
    assert (await complete(client, key)).status_code == 503
    engine.max_queue = 1000
    left = await complete(client, key)
    assert left.headers["x-ratelimit-remaining-tokens"] == "990"
    engine.crash_after = 3
    assert (await complete(client, key)).status_code == 503
    assert nothing_is_held(state)
    found = sums(state)
    counts = (found["requests"], found["errors"], found["prompt_tokens"])
    assert counts == (2, 1, 8), "what is refused at once is not booked"
    assert found["completion_tokens"] == 9


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_gives_everything_back(
    http: httpx.AsyncClient,  # noqa: F811
    engine: FakeEngine,
    state: State,
    limited: Any,
    stream: bool,
) -> None:
    engine.delay, key = 0.05, limited(max_concurrent=2, tokens_per_minute=1000)
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 100, "ignore_eos": True, "stream": stream}
    http.headers.update(key)
    await leave(http, engine, body)
    await quiet(engine)
    async with asyncio.timeout(60):
        while not nothing_is_held(state):
            await asyncio.sleep(0.01)
    found = sums(state)
    assert (found["requests"], found["errors"], found["prompt_tokens"]) == (1, 0, 4)
    assert 0 < found["completion_tokens"] < 100


async def test_openais_client_waits_and_tries_again(
    server: str,  # noqa: F811
    limited: Any,
    state: State,
) -> None:
    key = limited(requests_per_minute=60)["authorization"].removeprefix("Bearer ")
    meter = next(iter(state.quotas._meters.values()), None)
    assert meter is None
    async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key=key, max_retries=1) as client:
        await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=2)
        [meter] = state.quotas._meters.values()
        meter.requests.take(60)
        again = await client.completions.with_raw_response.create(model="tiny", prompt=PROMPT, max_tokens=2)
        assert again.retries_taken == 1
        meter.requests.take(60)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.with_options(max_retries=0).completions.create(model="tiny", prompt=PROMPT, max_tokens=2)
        assert refused.value.code == "rate_limit_exceeded"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.1201, "121ms"), (1, "1s"), (59.2, "1m0s"), (360, "6m0s"), (3600, "1h0m0s"), (73010.5, "20h16m51s"),
    ],
)  # fmt: skip
def test_spans(seconds: float, words: str) -> None:
    assert span(seconds) == words


async def test_keys_for_some_adapters_know_no_others(
    client: httpx.AsyncClient, state: State, admin: Headers, adapter_folders: list[Path]
) -> None:
    from ..test_adapters_api import add

    client.headers.update(admin)
    for name, folder in zip(("sql", "secret"), adapter_folders, strict=True):
        assert (await add(client, name, folder)).status_code == 201
    body = {"name": "some", "scopes": ["inference", "adapters"], "adapters": ["sql"]}
    made = await client.post("/api/v1/keys", json=body)
    key = {"authorization": f"Bearer {made.json()['token']}"}
    assert made.json()["adapters"] == ["sql"]
    listed = (await client.get("/v1/models", headers=key)).json()["data"]
    assert [model["id"] for model in listed] == ["sql"]
    assert (await complete(client, key, model="sql")).status_code == 200
    for model in ("tiny", "secret", "secret@1", "tiny:secret"):
        hidden, random = await complete(client, key, model=model), await complete(client, key, model="x" * len(model))
        assert hidden.status_code == random.status_code == 404
        assert hidden.text.replace(model, "") == random.text.replace("x" * len(model), "")
        assert (await client.get(f"/v1/models/{model}", headers=key)).status_code == 404
    sum_of_both = {"adapters": [{"name": "sql"}, {"name": "secret"}]}
    assert (await complete(client, key, **sum_of_both)).status_code == 404
    adapters = (await client.get("/api/v1/adapters", headers=key)).json()["data"]
    assert [adapter["name"] for adapter in adapters] == ["sql"]
    assert (await client.get("/api/v1/adapters/sql", headers=key)).status_code == 200
    for method, path in (("GET", "secret"), ("GET", "secret@1/report"), ("PATCH", "secret"), ("DELETE", "secret@1")):
        answer = await client.request(method, f"/api/v1/adapters/{path}", headers=key, json={"pinned": True})
        assert answer.status_code == 404, path
    assert (await client.get("/adapters", headers=key)).status_code == 403
    widened = await client.patch(f"/api/v1/keys/{made.json()['prefix']}", json={"adapters": ["sql", "tiny"]})
    assert widened.json()["adapters"] == ["sql", "tiny"]
    assert (await complete(client, key)).status_code == 200


async def test_limits_over_the_api(client: httpx.AsyncClient, admin: Headers) -> None:
    client.headers.update(admin)
    body = {"name": "n", "limits": {"requests_per_minute": 5}, "expires_at": "2030-01-01T00:00:00Z"}
    made = (await client.post("/api/v1/keys", json=body)).json()
    none = {"tokens_per_minute": None, "max_concurrent": None, "tokens_per_day": None}
    assert made["limits"] == {"requests_per_minute": 5, **none}
    assert made["expires_at"] == "2030-01-01T00:00:00+00:00"
    path = f"/api/v1/keys/{made['prefix']}"
    changed = await client.patch(path, json={"limits": {"tokens_per_day": 7}})
    assert changed.json()["limits"] == {"requests_per_minute": None, **none, "tokens_per_day": 7}
    assert (await client.get(path)).json()["limits"]["tokens_per_day"] == 7
    narrowed = (await client.patch(path, json={"adapters": ["sql"]})).json()
    assert (narrowed["adapters"], narrowed["expires_at"]) == (["sql"], "2030-01-01T00:00:00+00:00")
    opened = (await client.patch(path, json={"adapters": None, "expires_at": None})).json()
    assert (opened["adapters"], opened["expires_at"], opened["limits"]["tokens_per_day"]) == (None, None, 7)
    assert (await client.patch(path, json={"limits": None})).status_code == 400
    for wrong in (
        {"limits": {"tokens_per_day": 0}},
        {"limits": {"tokens_per_day": 2**64}},
        {"limits": {"requests": 1}},
        {"adapters": []},
        {"adapters": ["\u0000"]},
    ):
        assert (await client.patch(path, json=wrong)).status_code == 400, wrong
    admin_of_some = {"name": "n", "scopes": ["admin"], "adapters": ["sql"]}
    assert (await client.post("/api/v1/keys", json=admin_of_some)).status_code == 400
    assert (await client.post("/api/v1/keys", json={"name": "n", "expires_at": "2030-01-01"})).status_code == 400
    past = await client.post("/api/v1/keys", json={"name": "n", "expires_at": "2020-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["error"]["param"]) == (400, "expires_at")


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
async def test_a_moment_that_utc_has_no_year_for_is_refused(
    client: httpx.AsyncClient, admin: Headers, moment: str
) -> None:
    client.headers.update(admin)
    made = (await client.post("/api/v1/keys", json={"name": "n"})).json()
    for method, path in (("POST", "/api/v1/keys"), ("PATCH", f"/api/v1/keys/{made['prefix']}")):
        body = {"expires_at": moment} | ({"name": "n"} if method == "POST" else {})
        refused = await client.request(method, path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "expires_at"), method
