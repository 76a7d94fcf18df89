"""What the other process does in the tests that need one. Imported there without pytest, and without torch."""

import os
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path

from loraplex.registry.database.database import Database
from loraplex.registry.files.sweep import sweep
from loraplex.registry.registry import Registry
from loraplex.registry.revision import bump_revision

from .helpers import BASE, add, sha256


def upload_until_killed(url: str, store: str, acknowledged: str, round_number: int) -> None:
    """Upload, register, acknowledge; now and then remove and sweep. Each acknowledgement is one durable-enough line."""
    assert "torch" not in sys.modules
    registry = Registry.open(url, Path(store), BASE, free_floor=0)
    log = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in count():
        weights = f"weights {round_number} {number}".encode() * 50
        added = add(registry, f"adapter-{number % 3}", weights)
        os.write(log, f"{added.name} {added.version.number} {sha256(weights)}\n".encode())
        if number % 4 == 3:
            add(registry, "doomed", weights + b"!")
            registry.adapters.remove("doomed", actor="system")
            sweep(registry.database, registry.store, timedelta(0))


def change_one_adapter(url: str, store: str, worker: int, rounds: int) -> None:
    """Two of these at once fight over one name."""
    registry = Registry.open(url, Path(store), BASE, free_floor=0)
    for number in range(rounds):
        added = add(registry, "shared", f"{worker} {number}".encode())
        registry.adapters.routes.set("shared", f"from-{worker}", added.version.number, actor=f"worker {worker}")
        registry.adapters.set_pinned(f"shared@from-{worker}", True, actor=f"worker {worker}")
        add(registry, "common", b"the same bytes")
        if number % 3 == 2:
            registry.adapters.remove(f"shared@from-{worker}", actor=f"worker {worker}")
            sweep(registry.database, registry.store)
    registry.close()


def bump_often(url: str, times: int) -> None:
    database = Database(url)
    for _ in range(times):
        with database.write() as session:
            bump_revision(session)
    database.close()
