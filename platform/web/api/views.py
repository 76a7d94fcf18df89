"""Adapters as JSON: what the registry knows of them, and what the engine has."""

from typing import Any

import msgspec

from loraplex.engine.protocol import AdapterStatus
from loraplex.registry.routes import Route
from loraplex.registry.views import Adapter, Version

from ..state import State

ON_DISK = AdapterStatus(digest="", state="registered")


def adapter_json(adapter: Adapter, state: State) -> dict[str, Any]:
    """One adapter with all its versions, newest first, and the engine's view of each."""
    statuses, failures = residency(state), state.reconciler.failures
    versions = [version_json(version, statuses, failures) for version in reversed(adapter.versions)]
    return {**registered_json(adapter), "versions": versions}


def registered_json(adapter: Adapter) -> dict[str, Any]:
    """The same without the engine's view, as words of the command line answer on the database alone."""
    latest, current = adapter.latest(), adapter.current()
    return {
        "name": adapter.name,
        "enabled": adapter.enabled,
        "pinned": adapter.pinned,
        "created_at": adapter.created_at.isoformat(),
        "created_by": adapter.created_by,
        "latest": latest and latest.number,
        "current": current and current.number,
        "aliases": dict(adapter.aliases),
        "routes": {name: msgspec.to_builtins(route_json(route)) for name, route in adapter.routes.items()},
        "versions": [_registered(version) for version in reversed(adapter.versions)],
    }


def route_json(route: Route) -> dict[str, Any]:
    """What an alias means; `version` is the stable one."""
    shadow = route.shadow
    return {
        "alias": route.alias,
        "version": route.stable,
        "weights": {str(version): weight for version, weight in route.weights.items()},
        "previous": route.previous,
        "guard": route.guard and msgspec.to_builtins(route.guard),
        "trip": route.trip and msgspec.to_builtins(route.trip),
        "shadow": shadow and {"version": shadow.version, "percent": shadow.shadow},
        "updated_at": route.updated_at.isoformat(),
        "updated_by": route.updated_by,
    }


def version_json(version: Version, statuses: dict[str, AdapterStatus], failures: dict[str, str]) -> dict[str, Any]:
    status = statuses.get(version.digest, ON_DISK)
    return {
        **_registered(version),
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


def _registered(version: Version) -> dict[str, Any]:
    return {
        "number": version.number,
        "digest": version.digest,
        "size": version.size,
        "peft_type": version.peft_type,
        "rank": version.rank,
        "alpha": version.alpha,
        "target_modules": list(version.target_modules),
        "parameters": version.parameters,
        "base_model": version.base_model,
        "invocation_tokens": list(version.invocation_tokens),
        "tokenizer_digest": version.tokenizer_digest,
        "profile_digest": version.profile_digest,
        "uploaded_by": version.uploaded_by,
        "created_at": version.created_at.isoformat(),
        "enabled": version.enabled,
        "pinned": version.pinned,
        "error": version.broken,
    }
