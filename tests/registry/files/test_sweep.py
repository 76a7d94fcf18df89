import os
import time
from datetime import timedelta
from pathlib import Path

from loraplex.registry.files.sweep import SweepReport, sweep
from loraplex.registry.registry import Registry

from ..helpers import CONFIG, add, put, sha256, snapshot

NOTHING = SweepReport(0, 0, (), ())
NOW = timedelta(0)


def sweep_now(registry: Registry, grace: timedelta = NOW) -> SweepReport:
    return sweep(registry.database, registry.store, grace)


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_store_in_order_is_left_alone(registry: Registry) -> None:
    digest = add(registry, "sql", b"one").version.digest
    before = snapshot(registry).revision
    assert sweep_now(registry) == NOTHING
    assert registry.store.problem(digest, len(CONFIG), 3) is None
    assert snapshot(registry).revision == before


def test_leftovers_and_orphans_go_after_the_grace_time(registry: Registry) -> None:
    store = registry.store
    put(store, b"nobody registered me")
    store.receive(5, "0" * 64, 5).write(b"part")
    (store.incoming / "folder").mkdir()
    (store.incoming / "folder" / "half").write_bytes(b"")
    store.publish("d" * 64, put(store, b"{}"), put(store, b"w"))
    assert sweep_now(registry, timedelta(hours=1)) == NOTHING
    assert sweep_now(registry) == SweepReport(leftovers=2, orphans=4, broken=(), healed=())
    assert sweep_now(registry) == NOTHING
    assert [*store.incoming.iterdir(), *store.blobs.iterdir(), *store.adapters.iterdir()] == []


def test_asking_for_bytes_keeps_them(registry: Registry) -> None:
    blob = put(registry.store, b"soon registered")
    age(registry.store.blob_path(blob.sha256), 7200)
    assert registry.store.find(blob.sha256) == blob
    assert sweep_now(registry, timedelta(hours=1)) == NOTHING


def test_removed_bytes_go_after_the_grace_time(registry: Registry) -> None:
    digest = add(registry, "sql", b"one").version.digest
    for path in [*registry.store.blobs.iterdir(), registry.store.folder(digest)]:
        age(path, 7200)
    registry.adapters.remove("sql", actor="user:admin")
    assert sweep_now(registry, timedelta(hours=1)) == NOTHING
    assert sweep_now(registry).orphans == 3
    assert not registry.store.folder(digest).exists()
    assert add(registry, "sql", b"one").version.broken is None
    assert (registry.store.folder(digest) / "adapter_model.safetensors").read_bytes() == b"one"


def test_a_row_without_its_bytes_is_broken_until_they_come_back(registry: Registry) -> None:
    digest = add(registry, "sql", b"one").version.digest
    weights = registry.store.folder(digest) / "adapter_model.safetensors"
    weights.unlink()
    assert sweep_now(registry).broken == (digest,)
    assert sweep_now(registry) == NOTHING
    assert "is missing" in str(registry.adapters.get("sql").versions[0].broken)
    assert [entry.action for entry in registry.audit.entries()] == ["artifact.break", "adapter.add"]
    assert snapshot(registry).desired() == []
    os.link(registry.store.blob_path(sha256(b"one")), weights)
    assert sweep_now(registry).healed == (digest,)
    assert [wanted.digest for wanted in snapshot(registry).desired()] == [digest]


def test_a_truncated_file_is_found(registry: Registry) -> None:
    digest = add(registry, "sql", b"one").version.digest
    weights = registry.store.folder(digest) / "adapter_model.safetensors"
    weights.unlink()
    weights.write_bytes(b"on")
    assert sweep_now(registry).broken == (digest,)
    assert registry.adapters.get("sql").versions[0].broken is not None


def test_uploading_again_heals(registry: Registry) -> None:
    digest = add(registry, "sql", b"one").version.digest
    (registry.store.folder(digest) / "adapter_config.json").unlink()
    sweep_now(registry)
    again = add(registry, "sql", b"one")
    assert (again.created, again.version.number, again.version.broken) == (False, 1, None)
    assert [wanted.digest for wanted in snapshot(registry).desired()] == [digest]
