"""What key check, routing, quotas and ledger add to a request: python -m benchmarks.request_overhead

In one process on SQLite, with 500 keys and 500 adapters, while the ledger is flushed as in the server. The
requests do nothing else. The figures are microseconds of one request: by the clock, which on a busy machine counts the
time of others too, and of the processor.
"""

import argparse
import hashlib
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loraplex.lora.files.manifest import BaseSignature, ModuleKind
from loraplex.registry.access.quotas import Quota
from loraplex.registry.base import ServedBase
from loraplex.registry.database import tables
from loraplex.registry.database.migrate import upgrade
from loraplex.registry.registry import Registry
from loraplex.registry.usage.ledger import Ledger
from loraplex.web.access.permissions import Permission, permissions_of_key
from loraplex.web.quotas.quotas import Quotas, account_of, tokens_to_reserve
from loraplex.web.usage.bookkeeping import FLUSH_SECONDS

BASE = ServedBase(
    "base", BaseSignature("f" * 64, 2, {"q_proj": ModuleKind("self_attn.q_proj", "linear", 8, 8, (0, 1))})
)
COUNT = 500
QUOTA = Quota(requests_per_minute=2**40, tokens_per_minute=2**40, max_concurrent=1000, tokens_per_day=2**50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    requests = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as registry:
        tokens = [make_key(registry, number) for number in range(COUNT)]
        add_adapters(registry)
        registry.snapshots.refresh()
        ledger = Ledger(registry.database, Path(folder) / "usage")
        with flushing(ledger):
            times = list(timed(registry, Quotas(ledger, registry.snapshots), tokens, requests))
        ledger.close()
    report("by the clock", sorted(clock for clock, _ in times))
    report("of the processor", sorted(processor for _, processor in times))


@contextmanager
def opened(folder: Path) -> Iterator[Registry]:
    url = f"sqlite:///{folder / 'registry.db'}"
    upgrade(url)
    registry = Registry.open(url, folder / "artifacts", BASE, free_floor=0)
    yield registry
    registry.close()


def make_key(registry: Registry, number: int) -> str:
    return registry.keys.create(f"key {number}", ["inference"], actor="benchmark", quota=QUOTA).token


def add_adapters(registry: Registry) -> None:
    """Rows alone: no request reads the bytes."""
    with registry.database.write() as session:
        for number in range(COUNT):
            digest = hashlib.sha256(str(number).encode()).hexdigest()
            session.add(artifact(digest))
            adapter = tables.Adapter(name=f"adapter-{number}", tenant_id=1, created_by="benchmark")
            adapter.versions.append(
                tables.AdapterVersion(
                    number=1, digest=digest, base_fingerprint="f" * 64, report={}, uploaded_by="benchmark"
                )
            )
            session.add(adapter)


def artifact(digest: str) -> tables.Artifact:
    return tables.Artifact(
        digest=digest,
        config_sha256=digest,
        config_size=1,
        weights_sha256=digest,
        weights_size=1,
        peft_type="LORA",
        rank=8,
        alpha=16.0,
        target_modules=["q_proj"],
        parameters=128,
        base_model="base",
    )


@contextmanager
def flushing(ledger: Ledger) -> Iterator[None]:
    stop = threading.Event()

    def flush() -> None:
        while not stop.wait(FLUSH_SECONDS):
            ledger.flush()

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def timed(registry: Registry, quotas: Quotas, tokens: list[str], requests: int) -> Iterator[tuple[float, float]]:
    """Of each request its seconds by the clock and of the processor."""
    for number in range(requests):
        token, model = tokens[number * 7 % COUNT], f"adapter-{number * 13 % COUNT}"
        clock, processor = time.perf_counter(), time.thread_time()
        serve(registry, quotas, token, model)
        yield time.perf_counter() - clock, time.thread_time() - processor


def serve(registry: Registry, quotas: Quotas, token: str, model: str) -> None:
    """All that one request costs beside the model."""
    snapshot = registry.snapshots.current
    key = snapshot.authenticate(token)
    assert Permission.INFERENCE in permissions_of_key(key.scopes, key.tenant)
    actor = f"key:{key.prefix}"
    with quotas.admit(key.tenant, actor, key.quota) as admission:
        adapter = snapshot.resolve(model, key.tenant, key.adapters)
        assert adapter is not None
        account = account_of(key.tenant, actor, {adapter.name: adapter.digest}, "base")
        admission.reserve(account, tokens_to_reserve(100, 50, 1, 1000))
        admission.headers()


def report(what: str, seconds: list[float]) -> None:
    """`seconds` in order."""
    print(f"{len(seconds):,} requests, microseconds {what}")
    for name, share in (("median", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("worst", 1.0)):
        at = min(len(seconds) - 1, int(share * len(seconds)))
        print(f"{name:>7} {1e6 * seconds[at]:10.1f}")


if __name__ == "__main__":
    main()
