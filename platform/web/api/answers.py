"""What the registry knows as the API answers it. Words of the command line on the database alone answer the same, and
import no web framework for it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from loraplex.registry.access.keys import ApiKey
    from loraplex.registry.access.tenants import Tenant
    from loraplex.registry.access.users import User
    from loraplex.registry.adapters.routes import Route
    from loraplex.registry.adapters.views import Adapter, Version
    from loraplex.registry.audit import AuditEntry, Verdict


def registered_json(adapter: "Adapter") -> dict[str, Any]:
    """An adapter with its versions, newest first, without the engine's view of them."""
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
        "versions": [version_row(version) for version in reversed(adapter.versions)],
    }


def version_row(version: "Version") -> dict[str, Any]:
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


def route_json(route: "Route") -> dict[str, Any]:
    """What an alias means; `version` is the stable one."""
    shadow = route.shadow
    return {
        "alias": route.alias,
        "version": route.stable,
        "weights": {str(version): weight for version, weight in route.weights.items()},
        "share_by": route.share_by,
        "previous": route.previous,
        "guard": route.guard and msgspec.to_builtins(route.guard),
        "trip": route.trip and msgspec.to_builtins(route.trip),
        "shadow": shadow and {"version": shadow.version, "percent": shadow.shadow},
        "updated_at": route.updated_at.isoformat(),
        "updated_by": route.updated_by,
    }


def key_json(key: "ApiKey") -> dict[str, Any]:
    moments = {name: getattr(key, name) for name in ("created_at", "last_used_at", "expires_at", "revoked_at")}
    return {
        "prefix": key.prefix,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "adapters": None if key.adapters is None else sorted(key.adapters),
        "limits": msgspec.to_builtins(key.quota),
        "created_by": key.created_by,
        **{name: moment.isoformat() if moment else None for name, moment in moments.items()},
    }


def user_json(user: "User") -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.role,
        "created_at": user.created_at.isoformat(),
        "password_changed_at": user.password_changed_at.isoformat(),
    }


def tenant_json(tenant: "Tenant") -> dict[str, Any]:
    return {
        "name": tenant.name,
        "created_at": tenant.created_at.isoformat(),
        "limits": msgspec.to_builtins(tenant.quota),
        "disabled_at": tenant.disabled_at and tenant.disabled_at.isoformat(),
    }


def entry_json(entry: "AuditEntry") -> dict[str, Any]:
    return {
        "id": entry.id,
        "at": entry.at.isoformat(),
        "tenant": entry.tenant,
        "actor": entry.actor,
        "actor_name": entry.actor_name or None,
        "action": entry.action,
        "subject": entry.subject,
        "detail": entry.detail,
        "hash": entry.hash or None,
        "intact": entry.intact,
    }


def chain_json(verdict: "Verdict") -> dict[str, Any]:
    return {"intact": verdict.problem is None, **asdict(verdict)}
