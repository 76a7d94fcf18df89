"""Adapters as JSON: what the registry knows of them, and what the engine has."""

from typing import Any

from loraplex.engine.protocol import AdapterStatus
from loraplex.registry.adapters.views import Adapter, Version

from ..state import State
from .answers import registered_json, version_row

ON_DISK = AdapterStatus(digest="", state="registered")


def adapter_json(adapter: Adapter, state: State) -> dict[str, Any]:
    """One adapter with all its versions, newest first, and the engine's view of each."""
    statuses, failures = residency(state), state.reconciler.failures
    versions = [version_json(version, statuses, failures) for version in reversed(adapter.versions)]
    return {**registered_json(adapter), "versions": versions}


def version_json(version: Version, statuses: dict[str, AdapterStatus], failures: dict[str, str]) -> dict[str, Any]:
    status = statuses.get(version.digest, ON_DISK)
    return {
        **version_row(version),
        "state": status.state,
        "tier": status.tier,
        "running": status.running,
        "bytes": status.bytes,
        "host_bytes": status.host_bytes,
        "error": version.broken or status.error or failures.get(version.digest),
    }


def residency(state: State) -> dict[str, AdapterStatus]:
    """digest -> what the engine last said of it."""
    status = state.engine.status
    return {} if status is None else {adapter.digest: adapter for adapter in status.adapters}
