"""Short words for what most tests of the registry do."""

import hashlib
from collections.abc import Sequence

from loraplex.registry.adapters.activation import Activation
from loraplex.registry.adapters.adapters import AddedVersion
from loraplex.registry.base import ServedBase
from loraplex.registry.certificates.certificates import CoverageOf
from loraplex.registry.files.artifacts import ArtifactStore, Blob
from loraplex.registry.registry import Registry
from loraplex.registry.report import Finding, Report, Summary
from loraplex.registry.snapshot import Snapshot
from tests.lora.signatures import llama_signature

BASE = ServedBase("demo", llama_signature("f" * 64, 2, {"q_proj": (8, 8)}))
FINGERPRINT = BASE.signature.fingerprint
LIMIT = 1 << 20
CONFIG = b'{"peft_type": "LORA"}'
HOSTILE_STRINGS = [
    "",
    "../../etc/passwd",
    "..",
    "a/b",
    "a\\b",
    "%2e%2e%2f",
    "a\x00b",
    "a\nb",
    "\ud800",
    "' OR '1'='1",
    "'; DROP TABLE adapters; --",
    '" UNION SELECT hash FROM api_keys --',
    "sql'--",
    "sql@1; DELETE FROM adapters",
    "sql@'1'",
    "sql@@1",
    "@1",
    "sql@",
    "sql@-1",
    "sql@1e+3",
    "sql@٣",
    "sql@" + "9" * 400,
    "ＳＱＬ",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "%s%n",
    "a" * 64,
    "a" * 100_000,
    ":" * 1000,
    "demo:",
    "demo:demo:sql",
    "other:sql",
]
"""None of them may name an adapter, find one, open anything or break anything."""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: ArtifactStore, data: bytes) -> Blob:
    """Upload one file."""
    with store.receive(len(data), sha256(data), LIMIT) as incoming:
        incoming.write(data)
        return incoming.finish()


def passing_report(digest: str, rank: int = 8, modules: Sequence[str] = ("q_proj",)) -> Report:
    summary = Summary(digest, "LORA", rank, 16.0, [*modules], 128, "demo")
    return Report([Finding("shapes", "pass", "All tensors have a module.")], summary)


def add(
    registry: Registry,
    name: str,
    weights: bytes,
    *,
    base: str = FINGERPRINT,
    tenant: str = "default",
    certify: CoverageOf | None = None,
    activation: Activation | None = None,
    modules: Sequence[str] = ("q_proj",),
) -> AddedVersion:
    """Upload both files of an adapter and register them; the digest is that of the weights."""
    return registry.adapters.add_version(
        name,
        put(registry.store, CONFIG),
        put(registry.store, weights),
        passing_report(sha256(weights), modules=modules),
        base_fingerprint=base,
        actor="user:admin",
        tenant=tenant,
        certify=certify,
        activation=activation,
    )


def snapshot(registry: Registry) -> Snapshot:
    registry.snapshots.refresh()
    return registry.snapshots.current
