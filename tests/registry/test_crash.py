"""kill -9 at random moments of upload, registration, removal and sweeping: what was acknowledged is still there."""

import random
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from sqlalchemy import select

from loraplex.registry.database import tables
from loraplex.registry.files.sweep import SweepReport, sweep
from loraplex.registry.registry import Registry

from ..campaign import Campaign
from ..fork_server import fork_server
from . import workers
from .helpers import sha256

KILLS, PARTS = 40, 4
"""A run takes one of so many parts of the kills."""


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServerContext]:
    """They have our modules already, and neither torch nor pytest."""
    with fork_server("tests.registry.workers") as context:
        yield context


def test_nothing_acknowledged_is_lost(
    registry: Registry, database_url: str, tmp_path: Path, campaign: Campaign, processes: ForkServerContext
) -> None:
    log, chance = tmp_path / "acknowledged", random.Random(campaign.seed)
    kills = campaign.part(KILLS, PARTS)
    for number in kills:
        arguments = (database_url, str(registry.store.root), str(log), number)
        worker = processes.Process(target=workers.upload_until_killed, args=arguments)
        worker.start()
        wait_for_growth(log, chance.randrange(4))
        time.sleep(chance.uniform(0, 0.05))
        worker.kill()
        worker.join()
        assert worker.exitcode == -9
        check_rows(registry)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len(lines) > campaign.enough(KILLS, PARTS)
    check_acknowledged(registry, lines)
    check_sweep(registry)
    check_acknowledged(registry, lines)


def wait_for_growth(log: Path, lines: int) -> None:
    """Until the worker has acknowledged this many uploads, so that the kills hit its work and not only its start."""
    deadline, start = time.monotonic() + 60, count_lines(log)
    while count_lines(log) < start + lines:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def count_lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def check_rows(registry: Registry) -> None:
    """No version that is not removed without its bytes."""
    with registry.database.read() as session:
        query = select(tables.Artifact).join(tables.AdapterVersion).where(tables.AdapterVersion.removed_at.is_(None))
        for artifact in session.scalars(query):
            assert artifact.broken is None
            assert registry.store.problem(artifact.digest, artifact.config_size, artifact.weights_size) is None


def check_acknowledged(registry: Registry, lines: list[list[str]]) -> None:
    adapters = {adapter.name: adapter for adapter in registry.adapters.list()}
    for name, number, digest in lines:
        version = adapters[name].select(int(number))
        assert version is not None
        assert version.digest == digest
        assert sha256((registry.store.folder(digest) / "adapter_model.safetensors").read_bytes()) == digest


def check_sweep(registry: Registry) -> None:
    report = sweep(registry.database, registry.store, timedelta(0))
    assert (report.broken, report.healed) == ((), ())
    assert sweep(registry.database, registry.store, timedelta(0)) == SweepReport(0, 0, (), ())
    assert list(registry.store.incoming.iterdir()) == []
