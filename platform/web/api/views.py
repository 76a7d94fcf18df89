"""Adapters as JSON: what the registry knows of them, and what the engine has."""

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from loraplex.engine.status import AdapterStatus
from loraplex.registry.adapters.views import Adapter, Version

from ..observability.hourly_use import hour_begun
from . import answers
from .answers import adapter_fields

if TYPE_CHECKING:
    from ..state import State

ON_DISK = AdapterStatus(digest="", state="registered")


def adapter_json(adapter: Adapter, state: "State") -> dict[str, Any]:
    """One adapter with all its versions, newest first, and the engine's view of each."""
    return answers.Adapter.of(adapter, **fields_of(adapter, state)).as_json()


def fields_of(adapter: Adapter, state: "State") -> dict[str, Any]:
    """Those that its answer does not have from the registry as they are."""
    statuses, failures = residency(state), state.reconciler.failures
    running = partial(state.metrics.use.running, adapter.tenant, adapter.name)
    versions = [
        version_of(version, statuses, failures, running(version.number)) for version in reversed(adapter.versions)
    ]
    return adapter_fields(adapter) | {"versions": versions, "last_used_at": last_use(adapter, state)}


def last_use(adapter: Adapter, state: "State") -> datetime | None:
    """Under its own name: others may have the same bytes. From before the server's start, the beginning of the hour."""
    last = state.metrics.use.last(adapter.tenant, adapter.name)
    if last is not None:
        return last
    hours = state.metrics.hours.hours_since_use(adapter.tenant, adapter.name)
    return None if hours is None else hour_begun(hours)


def version_of(
    version: Version, statuses: dict[str, AdapterStatus], failures: dict[str, str], running: int
) -> answers.Version:
    """`running`: requests by the adapter's own name. The engine counts those of all names with the same bytes."""
    status = statuses.get(version.digest, ON_DISK)
    return answers.Version.of(
        version,
        error=version.broken or status.error or failures.get(version.digest),
        state=status.state,
        tier=status.tier,
        running=running,
        bytes=status.bytes,
        host_bytes=status.host_bytes,
    )


def residency(state: "State") -> dict[str, AdapterStatus]:
    """digest -> what the engine last said of it."""
    status = state.engine.status
    return {} if status is None else {adapter.digest: adapter for adapter in status.adapters}
