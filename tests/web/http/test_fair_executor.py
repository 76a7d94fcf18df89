"""Few threads, and tenants that want them all."""

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import httpx
import pytest

from loraplex.web.http import off_loop as off_loop_module
from loraplex.web.http.fair_executor import FairExecutor, asking
from loraplex.web.http.off_loop import INLINE_CHARS, off_loop


class Works:
    """Works that run until they are let go, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self._open = False

    def work(self, name: str) -> Callable[[], str]:
        gate = self._gates[name] = threading.Event()
        if self._open:
            gate.set()

        def run() -> str:
            self.began.append(name)
            assert gate.wait(30)
            return name

        return run

    def has_begun(self, name: str) -> bool:
        return name in self.began

    def let_go(self, *names: str) -> None:
        """These; without names all, and those to come."""
        self._open = not names
        for name in names or self._gates:
            self._gates[name].set()


def ask(turns: FairExecutor, works: Works, tenant: str, name: str) -> asyncio.Task[str]:
    async def run() -> str:
        asking.set(tenant)
        return await turns.run(works.work(name))

    return asyncio.create_task(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Whatever can go on has gone on."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_one_tenant_leaves_a_place_to_the_others() -> None:
    turns, works = FairExecutor(3), Works()
    own = [ask(turns, works, "a", f"a{number}") for number in range(4)]
    await until(lambda: len(works.began) == 2)
    await settled()
    assert works.began == ["a0", "a1"]
    other = ask(turns, works, "b", "b0")
    await until(lambda: "b0" in works.began)
    works.let_go("b0")
    assert await other == "b0"
    await settled()
    assert sorted(works.began) == ["a0", "a1", "b0"], "the place that b left is no place for a third of a's"
    works.let_go()
    assert await asyncio.gather(*own) == ["a0", "a1", "a2", "a3"]


async def test_tenants_take_turns() -> None:
    turns, works = FairExecutor(2), Works()
    tasks = [ask(turns, works, "a", "a0"), ask(turns, works, "b", "b0")]
    await until(lambda: len(works.began) == 2)
    tasks += [ask(turns, works, "c", name) for name in ("c0", "c1", "c2")]
    tasks += [ask(turns, works, "d", name) for name in ("d0", "d1")]
    await settled()
    for name, following in itertools.pairwise(("a0", "c0", "d0", "c1", "d1", "c2")):
        works.let_go(name)
        await until(partial(works.has_begun, following))
    works.let_go()
    await asyncio.gather(*tasks)
    assert works.began[2:] == ["c0", "d0", "c1", "d1", "c2"]


async def test_a_place_is_taken_until_the_work_ends_though_nobody_waits_for_it() -> None:
    turns, works = FairExecutor(2), Works()
    first, second = ask(turns, works, "a", "a0"), ask(turns, works, "a", "a1")
    await until(lambda: works.began == ["a0"])
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    await settled()
    assert works.began == ["a0"]
    works.let_go("a0", "a1")
    assert await second == "a1"


async def test_who_is_cancelled_while_waiting_takes_no_place() -> None:
    turns, works = FairExecutor(2), Works()
    running = ask(turns, works, "a", "a0")
    waiting = [ask(turns, works, "a", f"a{number}") for number in (1, 2)]
    await until(lambda: works.began == ["a0"])
    waiting[0].cancel()
    works.let_go("a0", "a2")
    assert (await running, await waiting[1]) == ("a0", "a2")
    assert works.began == ["a0", "a2"]
    # Its turn has come, and it does not know it yet.
    running, late = ask(turns, works, "a", "a3"), ask(turns, works, "a", "a4")
    await until(lambda: "a3" in works.began)
    works.let_go("a3")
    await running
    late.cancel()
    with suppress(asyncio.CancelledError):
        await late
    last = ask(turns, works, "a", "a5")
    works.let_go()
    assert await last == "a5"


async def test_what_fails_gives_its_place_back() -> None:
    def fail() -> None:
        raise ValueError("no")

    turns = FairExecutor(2)
    for _ in range(5):
        with pytest.raises(ValueError, match="no"):
            await turns.run(fail)


async def test_long_texts_of_one_tenant_keep_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the threads that databases are asked on."""
    monkeypatch.setattr(off_loop_module, "THREADS", 2)
    works = Works()

    async def long(tenant: str, name: str) -> str:
        asking.set(tenant)
        return await off_loop(works.work(name), INLINE_CHARS + 1)

    flood = [asyncio.create_task(long("a", f"a{number}")) for number in range(64)]
    await until(lambda: works.began == ["a0"])
    other = asyncio.create_task(long("b", "b0"))
    await until(lambda: works.began == ["a0", "b0"])
    async with asyncio.timeout(30):
        assert await asyncio.to_thread(lambda: "read") == "read"
    works.let_go()
    assert await other == "b0"
    assert len(await asyncio.gather(*flood)) == 64


async def test_the_turn_is_that_of_the_tenant_whose_key_asks(
    client: httpx.AsyncClient, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await client.post("/api/v1/tenants", json={"name": "acme"}, headers=admin)).status_code == 201
    made = await client.post("/api/v1/keys", params={"tenant": "acme"}, json={"name": "k"}, headers=admin)
    seen, run = [], FairExecutor.run

    async def note(turns: FairExecutor, work: Callable[[], object]) -> object:
        seen.append(asking.get())
        return await run(turns, work)

    monkeypatch.setattr(FairExecutor, "run", note)
    text = "hello " * INLINE_CHARS
    for headers in ({"authorization": f"Bearer {made.json()['token']}"}, {}):
        answer = await client.post("/tokenize", json={"prompt": text}, headers=headers)
        assert answer.status_code == 200 and answer.json()["count"] > INLINE_CHARS / 2
    assert set(seen) == {"acme", "default"} and seen[0] == "acme" and seen[-1] == "default"
