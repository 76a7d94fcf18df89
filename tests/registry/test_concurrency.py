import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from loraplex.registry.audit import record
from loraplex.registry.database.database import Database, open_engine
from loraplex.registry.database.tables import AuditRow
from loraplex.registry.registry import Registry
from loraplex.registry.revision import bump_revision, read_revision

from ..fork_server import fork_server
from . import workers
from .helpers import add, put, snapshot


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServerContext]:
    """They have our modules already, and neither torch nor pytest."""
    with fork_server("tests.registry.workers") as context:
        yield context


def run_together(context: ForkServerContext, target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
    running = [context.Process(target=target, args=each) for each in arguments]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
    assert [process.exitcode for process in running] == [0] * len(running)


def test_sixteen_threads_write_without_a_locked_database(database_url: str) -> None:
    database = Database(database_url)
    writes = 150 if database.is_sqlite else 50

    def write(thread: int) -> None:
        for number in range(writes):
            with database.write() as session:
                bump_revision(session)
                record(session, f"thread {thread}", "test.write", str(number))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(16)))
    with database.read() as session:
        assert read_revision(session) == session.scalar(select(func.count(AuditRow.id))) == 16 * writes
    database.close()


def test_processes_write_without_a_locked_database(database_url: str, processes: ForkServerContext) -> None:
    run_together(processes, workers.bump_often, [(database_url, 150)] * 3)
    database = Database(database_url)
    with database.read() as session:
        assert read_revision(session) == 450
    database.close()


def test_two_processes_change_one_adapter(registry: Registry, database_url: str, processes: ForkServerContext) -> None:
    rounds, store = 18, str(registry.store.root)
    run_together(processes, workers.change_one_adapter, [(database_url, store, worker, rounds) for worker in (1, 2)])
    shared = registry.adapters.get("shared")
    assert len(shared.versions) == 2 * rounds - 2 * (rounds // 3)
    assert max(version.number for version in shared.versions) <= 2 * rounds
    assert [version.number for version in registry.adapters.get("common").versions] == [1]
    for wanted in snapshot(registry).desired():
        assert sorted(path.name for path in wanted.folder.iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]


def test_many_threads_upload_the_same_bytes_once(registry: Registry) -> None:
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda _: add(registry, "sql", b"one"), range(16)))
    assert sum(each.created for each in added) == 1
    assert {each.version.number for each in added} == {1}


def test_readers_see_only_whole_changes(registry: Registry) -> None:
    """A reader never sees an alias without its version, or a row without its bytes."""
    add(registry, "sql", b"first")
    done = threading.Event()

    def read() -> int:
        looks = 0
        while not done.is_set() or looks < 5:
            view = snapshot(registry)
            for wanted in view.desired():
                assert (wanted.folder / "adapter_model.safetensors").exists()
            looks += view.resolve("sql") is not None
        return looks

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for number in range(15):
            version = add(registry, "sql", b"weights %d" % number).version.number
            registry.adapters.routes.set("sql", "stable", version, actor="system")
            registry.adapters.remove(f"sql@{version - 1}", actor="system")
        done.set()
        assert all(reader.result() >= 5 for reader in readers)


def test_an_upload_blocks_nobody(registry: Registry) -> None:
    slow = registry.store.receive(10, "0" * 64, 10)
    slow.write(b"12345")
    assert put(registry.store, b"quick").size == 5
    assert add(registry, "sql", b"one").created
    slow.abort()


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(3)

    def open_new_files() -> None:
        for number in range(200):
            engine = open_engine(f"sqlite:///{tmp_path}/{number}.db")
            barrier.wait(60)
            engine.connect().close()
            engine.dispose()

    with ThreadPoolExecutor(3) as pool:
        for finished in [pool.submit(open_new_files) for _ in range(3)]:
            finished.result()
