"""A running server gives the disk back: files that no version wants go, after an hour."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from loraplex.registry.files import sweep
from loraplex.web.adapters import housekeeping
from loraplex.web.state import State

from ...registry.helpers import add


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.02)


def age(path: Path) -> None:
    os.utime(path, (time.time() - 7200,) * 2)


async def test_a_removed_adapters_files_go_after_the_grace_time_while_the_server_runs(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "SWEEP_SECONDS", 0.05)
    task = asyncio.create_task(housekeeping.keep_house(state.registry))
    try:
        registry, store = state.registry, state.registry.store
        kept, gone = (store.folder(add(registry, name, name.encode()).version.digest) for name in ("kept", "gone"))
        leftover = store.incoming / "half"
        leftover.write_bytes(b"part")
        for path in (kept, gone, leftover, *store.blobs.iterdir()):
            age(path)
        await until(lambda: not leftover.exists())
        registry.adapters.remove("gone", actor="user:admin")
        await asyncio.sleep(0.3)
        assert gone.exists(), "requests may still read it, and the removal can be undone"
        monkeypatch.setattr(housekeeping, "sweep", lambda *of: sweep.sweep(*of, timedelta(0)))
        await until(lambda: not gone.exists())
        assert kept.exists() and not task.done()
    finally:
        task.cancel()


async def test_a_database_that_is_away_is_no_end(
    state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(housekeeping, "SWEEP_SECONDS", 0.02)
    tries = iter([True, True, False])

    def broken(*_: object) -> sweep.SweepReport:
        if next(tries, False):
            raise OSError("the disk is away")
        return sweep.SweepReport(1, 2, ("d" * 64,), ())

    monkeypatch.setattr(housekeeping, "sweep", broken)
    caplog.set_level("INFO", "loraplex")
    task = asyncio.create_task(housekeeping.keep_house(state.registry))
    await until(lambda: "the files of 1 adapters are missing or changed on the disk (dddddddddddd)" in caplog.text)
    assert "cannot be removed now" in caplog.text and "1 leftovers of uploads and 2 unwanted files" in caplog.text
    task.cancel()


async def test_a_server_keeps_house_from_its_start_on(client: httpx.AsyncClient, state: State) -> None:
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert "keep_house" in names
