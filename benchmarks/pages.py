"""How long the dashboard's pages take with thousands of adapters and a million rows of usage:
python -m benchmarks.pages [--adapters 5000] [--usage 1000000]

The whole app with a real database, in this process and without a network; the engine is a stand-in that says what a
real one would of so many adapters. Prints the median and the slowest of some requests for each page, in milliseconds,
and which pages were not asked for.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from sqlalchemy import insert, select, text
from starlette.routing import compile_path

from loraplex.engine.processes.long_lived import keep_for_good
from loraplex.engine.protocol import EngineStatus
from loraplex.engine.status import AdapterStatus
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.access.tenants import tenant_id
from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.adapters.routes import Guard
from loraplex.registry.audit import record
from loraplex.registry.database import tables
from loraplex.registry.database.tables import DEFAULT_TENANT
from loraplex.registry.usage.ledger import COUNTS, DAY_KEY
from loraplex.web.access.permissions import PUBLIC, access_of
from loraplex.web.access.sessions import COOKIE
from loraplex.web.app import create_app
from loraplex.web.observability.metrics import RECENT
from loraplex.web.observability.request_log import FinishedRequest, Phases
from loraplex.web.routing.tallies import LATEST, Lane
from loraplex.web.settings.settings import DEMO_MODEL, Settings
from loraplex.web.state import State, open_state
from tests.web.fake_engine import FakeEngine

PASSWORD: Final = "only for this benchmark"
LIMIT_MS: Final = 100.0
REPEATS: Final = 15
HOURS: Final = 30 * 24
KEYS: Final = 41
"""Has no factor in common with the number of adapters, so that no two places are one account."""
PAGES: Final = (
    "/",
    "/adapters",
    "/adapters?search=adapter-4",
    "/adapters?show=disk&order=requests",
    "/adapters/adapter-00042",
    "/adapters/adapter-00042/traffic",
    "/adapters/adapter-00042/states",
    "/upload",
    "/cache",
    "/cache/what-if",
    "/playground",
    "/requests",
    "/requests?search=req-99",
    "/system",
    "/dashboard/state",
    "/usage",
    "/usage?by=key",
    "/usage?by=day,key,adapter",
    "/usage?adapter=adapter-00042&by=day",
    "/usage/points",
    "/keys",
    "/users",
    "/account",
    "/tenants",
    "/audit",
    "/login",
    "/adapters/adapter-00042/diff?before=1&after=1",
    "/adapters/adapter-00042/profile",
    "/adapters/adapter-00042/aliases",
    "/users/admin",
    "/tenants/default",
    "/audit/1",
    "/audit/chain",
)
KEY_PAGE: Final = "/keys/{prefix}"
FILES: Final = ("/usage/csv", "/audit/export", "/audit/export?format=jsonl", "/api/v1/audit/export")
"""Of these the time to the first bytes counts: as long as the file, the rest takes."""
AUDIT_ROWS: Final = 20_000
ROUTED: Final = "adapter-00042"
"""Has two versions, a route with a candidate, and a serving profile."""
NOT_MEASURED: Final = frozenset({"/dashboard/live", "/adapters/{name}/tensors"})
"""Endless; of one file, however many adapters there are."""


class ManyAdapters(FakeEngine):
    """Says the same of its adapters each time, as the client does between two heartbeats."""

    said: EngineStatus | None = None

    @property
    def status(self) -> EngineStatus | None:
        return self.said


def fill(state: State, count: int) -> list[str]:
    """So many adapters in the database, one version each; their digests."""
    digests = [f"{number:064x}" for number in range(count)]
    with state.registry.database.write() as session:
        tenant = tenant_id(session, DEFAULT_TENANT)
        for number, digest in enumerate(digests):
            artifact = tables.Artifact(
                digest=digest,
                config_sha256=digest,
                config_size=500,
                weights_sha256=digest,
                weights_size=4_000_000 + number,
                peft_type="LORA",
                rank=16,
                alpha=32.0,
                target_modules=["q_proj", "v_proj"],
                parameters=2_000_000,
                base_model="benchmark",
            )
            adapter = tables.Adapter(name=f"adapter-{number:05}", tenant_id=tenant, created_by="benchmark")
            version = tables.AdapterVersion(
                number=1,
                artifact=artifact,
                base_fingerprint=state.base.signature.fingerprint,
                report={"findings": []},
                uploaded_by="benchmark",
            )
            adapter.versions.append(version)
            session.add(adapter)
    state.registry.snapshots._current = state.registry.snapshots._load()
    return digests


def route(state: State) -> None:
    """All that an adapter's page may have to show."""
    with state.registry.database.write() as session:
        adapter = session.scalars(select(tables.Adapter).where(tables.Adapter.name == ROUTED)).one()
        first = adapter.versions[0]
        second = tables.AdapterVersion(
            number=2,
            digest=f"{1:064x}",
            base_fingerprint=first.base_fingerprint,
            report={"findings": []},
            uploaded_by="benchmark",
        )
        adapter.versions.append(second)
    registry, actor = state.registry, "benchmark"
    profile = ServingProfile(system_prompt="Answer in SQL.", temperature=0.2, max_tokens=200)
    registry.profiles.set(f"{ROUTED}@1", profile, actor=actor)
    registry.adapters.routes.set(ROUTED, "default", 1, {1: 90, 2: 10}, actor=actor)
    changed = registry.adapters.routes.set_guard(ROUTED, "default", Guard(max_error_rate=0.1), actor=actor)
    (candidate,) = changed.routes["default"].candidates
    stable = Lane(DEFAULT_TENANT, ROUTED, "default", 1)
    for lane in (stable, replace(stable, version=2, since=candidate.since)):
        for number in range(LATEST):
            state.tallies.note(lane, False, number % 97 / 100, number % 89 / 10, 50)
    registry.snapshots.refresh()


def log(state: State) -> None:
    """An audit log of some length."""
    with state.registry.database.write() as session:
        for number in range(AUDIT_ROWS):
            subject = f"adapter:adapter-{number % 5000:05}"
            record(session, "user:admin", "adapter.pin", subject, tenant_id=1)


def statuses(digests: list[str]) -> list[AdapterStatus]:
    """Every tenth in memory."""
    return [
        AdapterStatus(
            digest=digest,
            state="registered" if number % 10 else "resident",
            tier="disk" if number % 10 else "device",
            rank=16,
            pages=14,
            bytes=4_000_000,
            last_used_seconds_ago=float(number),
        )
        for number, digest in enumerate(digests)
    ]


def remember(state: State, digests: list[str]) -> None:
    """A full log of requests."""
    for number in range(RECENT):
        place = number * 7919 % len(digests)
        state.metrics.hours.note(DEFAULT_TENANT, f"adapter-{place:05}", False, 50)
        request = FinishedRequest(
            at=time.time() - RECENT + number,
            tenant=DEFAULT_TENANT,
            actor="user:admin",
            request_id=f"req-{number}",
            model=f"adapter-{place:05}",
            version="1",
            digests=(digests[place],),
            status="stop",
            prompt_tokens=100,
            completion_tokens=50,
            cached_tokens=0,
            first_token=0.1,
            duration=1.0,
            phases=Phases(0.01, 0.02, 0.07, 0.9),
        )
        state.metrics.recent.append(request)
        state.metrics.log.add(request)


def book(state: State, count: int) -> None:
    """So many rows of usage in the last 30 days: in each hour the same keys, with the same adapters."""
    now = datetime.now(UTC)
    with state.registry.database.write() as session:
        for hour in (now - timedelta(hours=number) for number in range(HOURS)):
            rows = [
                {
                    "tenant_id": 1,
                    "day": hour.date().isoformat(),
                    "hour": hour.hour,
                    "actor": f"key:{place % KEYS:012x}",
                    "adapter_digest": f"{place * 7919 % 500:064x}",
                    "adapter_name": f"adapter-{place * 7919 % 500:05}",
                    **dict.fromkeys(COUNTS, 3),
                }
                for place in range(count // HOURS)
            ]
            session.execute(insert(tables.UsageRow), rows)
        account, sums = ", ".join(DAY_KEY), ", ".join(f"SUM({name})" for name in COUNTS)
        days = f"INSERT INTO usage_days ({account}, {', '.join(COUNTS)})"
        session.execute(text(f"{days} SELECT {account}, {sums} FROM usage GROUP BY {account}"))


def unmeasured(app: FastAPI) -> set[str]:
    """Pages that no path of PAGES leads to."""
    pages = {
        context.path: compile_path(context.path)[0]
        for context in iter_route_contexts(app.routes)
        if context.path
        and "GET" in (getattr(context, "methods", None) or ())
        and access_of(context.path, True) != PUBLIC
    }
    asked = [path.partition("?")[0] for path in (*PAGES, KEY_PAGE, *FILES)]
    apis = ("/api/", "/v1/", "/metrics")
    return {
        path
        for path, pattern in pages.items()
        if not path.startswith(apis) and path not in NOT_MEASURED and not any(pattern.match(one) for one in asked)
    }


async def measure(client: httpx.AsyncClient, path: str) -> tuple[float, float]:
    """Median and slowest of a few requests after the first, in milliseconds."""
    taken = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        answer = await client.get(path)
        taken.append(1000 * (time.perf_counter() - started))
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[:200]}")
    return statistics.median(taken[1:]), max(taken[1:])


async def measure_start(app: FastAPI, path: str, headers: dict[str, str]) -> tuple[float, float]:
    """As measure, of the time until the first bytes of the body have come; the rest is not waited for."""
    taken = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        await first_bytes(app, path, headers)
        taken.append(1000 * (time.perf_counter() - started))
    return statistics.median(taken[1:]), max(taken[1:])


async def first_bytes(app: FastAPI, path: str, headers: dict[str, str]) -> None:
    """Ask for a file and leave when it begins to come."""
    place, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": place,
        "raw_path": place.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in {"host": "pages", **headers}.items()],
        "client": ("127.0.0.1", 1),
        "server": ("pages", 80),
        "state": {},
    }
    begun, sizes, asked, status = asyncio.Event(), [0], [False], [0]

    async def receive() -> dict[str, object]:
        if asked[0]:
            await asyncio.Event().wait()
        asked[0] = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        status[0] = message.get("status", status[0])
        sizes[0] += len(message.get("body", b""))
        # The head of a table comes before the first row is read.
        if sizes[0] > 200 or (message["type"] == "http.response.body" and not message.get("more_body")):
            begun.set()

    task = asyncio.create_task(app(scope, receive, send))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    if status[0] != 200:
        raise RuntimeError(f"{path}: {status[0]}")


async def run(folder: Path, count: int, usage: int) -> bool:
    """Whether every page is within the limit."""
    settings = Settings(data_dir=folder, admin_password=PASSWORD, min_free_bytes=0)
    engine = ManyAdapters(Tokenizer(DEMO_MODEL))
    state = open_state(settings, DEMO_MODEL, engine)
    digests = fill(state, count)
    remember(state, digests)
    book(state, usage)
    route(state)
    log(state)
    prefix = state.registry.keys.list()[0].prefix
    app = create_app(state)
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[object]] = app.router.lifespan_context
    async with lifespan(app):
        await state.started.wait()
        engine.said = FakeEngine.status.fget(engine)  # type: ignore[attr-defined]
        assert engine.said is not None
        engine.said.adapters = statuses(digests)
        cookie = state.sessions.log_in("admin", PASSWORD, "127.0.0.1")
        headers = {"accept": "text/html", "cookie": f"{COOKIE}={cookie}"}
        keep_for_good()  # as the server does at the end of its start
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://pages", headers=headers) as client:
            figures = [(path, *await measure(client, path)) for path in (*PAGES, KEY_PAGE.format(prefix=prefix))]
            figures += [(f"{path} (start)", *await measure_start(app, path, headers)) for path in FILES]
    print(
        f"{count:,} adapters, {RECENT:,} requests kept, {usage:,} rows of usage; milliseconds, {REPEATS} times each\n"
    )
    print(f"{'page':40}{'median':>10}{'slowest':>10}")
    for path, median, slowest in figures:
        print(f"{path:40}{median:10.1f}{slowest:10.1f}{'' if median < LIMIT_MS else '   over the limit'}")
    print("".join(f"not measured: {path}\n" for path in sorted(unmeasured(app))), end="")
    return all(median < LIMIT_MS for _, median, _ in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapters", type=int, default=5000)
    parser.add_argument("--usage", type=int, default=1_000_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fast = asyncio.run(run(Path(folder), chosen.adapters, chosen.usage))
    raise SystemExit(0 if fast else f"a page takes longer than {LIMIT_MS:.0f} ms")


if __name__ == "__main__":
    main()
