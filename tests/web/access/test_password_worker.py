"""Passwords are hashed one at a time, behind all other work, and who comes when many wait is refused at once."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import httpx
import pytest

from loraplex.registry.access.users import User
from loraplex.web.access.login_throttle import MOST_AT_AN_ACCOUNT
from loraplex.web.access.password_worker import MOST_OF_ADDRESS, MOST_PENDING, NICENESS, PasswordWorker
from loraplex.web.http.errors import ApiError
from loraplex.web.state import State


class Gate:
    """Work that ends when it is opened. How much of it ran at once."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.running, self.most, self.done = 0, 0, 0

    def work(self, *_: object, **__: object) -> User | None:
        self.running += 1
        self.most = max(self.most, self.running)
        assert self.open.wait(60)
        self.running -= 1
        self.done += 1
        return None


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def worker() -> Iterator[PasswordWorker]:
    worker = PasswordWorker()
    yield worker
    worker.close()


async def outcome(worker: PasswordWorker, work: Callable[[], object], address: str) -> object:
    try:
        return await worker.run(work, address)
    except ApiError as error:
        assert int(error.headers["retry-after"]) > 0
        return error.status


async def test_one_at_a_time_and_few_of_them_wait(worker: PasswordWorker, gate: Gate) -> None:
    tasks = [asyncio.create_task(outcome(worker, gate.work, f"a{number}")) for number in range(100)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert Counter(task.result() for task in tasks if task.done()) == {503: 100 - MOST_PENDING}
    assert await asyncio.to_thread(lambda: "free") == "free", "other work has its own threads"
    gate.open.set()
    await asyncio.gather(*tasks)
    assert (gate.most, gate.done) == (1, MOST_PENDING)
    assert await outcome(worker, lambda: "right", "a") == "right"


async def test_one_address_leaves_room_for_others(worker: PasswordWorker, gate: Gate) -> None:
    crowd = [asyncio.create_task(outcome(worker, gate.work, "crowd")) for _ in range(MOST_PENDING)]
    other = asyncio.create_task(outcome(worker, lambda: "in", "other"))
    await asyncio.sleep(0)
    gate.open.set()
    assert Counter(await asyncio.gather(*crowd)) == {None: MOST_OF_ADDRESS, 503: MOST_PENDING - MOST_OF_ADDRESS}
    assert await other == "in"


async def test_who_leaves_gives_no_place_back_before_the_work_has_ended(worker: PasswordWorker, gate: Gate) -> None:
    tasks = [asyncio.create_task(worker.run(gate.work, f"a{number}")) for number in range(MOST_PENDING)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await outcome(worker, lambda: "in", "late") == 503
    gate.open.set()
    while await outcome(worker, lambda: "in", "late") == 503:
        await asyncio.sleep(0.01)


async def test_its_thread_steps_back_and_no_other_does(worker: PasswordWorker) -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await worker.run(niceness, "a") == niceness() + NICENESS


async def test_a_hundred_wrong_logins_at_once(
    client: httpx.AsyncClient, state: State, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred accounts. Meanwhile the server answers as ever."""
    monkeypatch.setattr(state.registry.users, "verify", gate.work)

    async def log_in(number: int) -> httpx.Response:
        form = {"user": f"u{number}", "password": "wrong"}
        return await client.post("/login", data=form, headers={"origin": "http://test"})

    tasks = [asyncio.create_task(log_in(number)) for number in range(100)]
    while sum(task.done() for task in tasks) < 100 - MOST_OF_ADDRESS:
        await asyncio.sleep(0.01)
    for path in ("/ready", "/health", "/v1/models"):
        assert (await client.get(path)).status_code == 200
    gate.open.set()
    answers = await asyncio.gather(*tasks)
    assert Counter(answer.status_code for answer in answers) == {401: MOST_OF_ADDRESS, 503: 100 - MOST_OF_ADDRESS}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in answers if answer.status_code == 503)
    assert gate.most == 1


async def test_who_guesses_takes_no_place(client: httpx.AsyncClient, state: State, gate: Gate) -> None:
    """429 at once, while the worker is busy."""
    for _ in range(MOST_AT_AN_ACCOUNT):
        assert await asyncio.to_thread(state.sessions.log_in, "admin", "wrong", "127.0.0.1") is None
    busy = asyncio.create_task(state.passwords.run(partial(gate.work), "a"))
    form = {"user": "admin", "password": "wrong"}
    answer = await client.post("/login", data=form, headers={"origin": "http://test"})
    assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (429, True)
    gate.open.set()
    await busy
