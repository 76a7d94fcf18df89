"""What the management API answers, each once: the JSON and its OpenAPI document derive from it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from msgspec import UNSET, UnsetType

from loraplex.registry.access.quotas import Quota
from loraplex.registry.adapters.routes import Guard, ShareBy, Trip
from loraplex.registry.report import Report

from ..routing.answers import Move, RouteFigures
from .fields import Moment, Role, Scope, Sha256

if TYPE_CHECKING:
    from loraplex.registry import audit
    from loraplex.registry.access import keys, tenants, users
    from loraplex.registry.adapters import routes, views

PLAIN: Final[dict[type, Callable[[Any], Any]]] = {datetime: datetime.isoformat, frozenset: sorted, tuple: list}
"""How values of these types are told."""


class Told(msgspec.Struct, frozen=True):
    @classmethod
    def of(cls, source: object, **own: Any) -> Self:
        """Fields as `source` has them under the same names, but for its `own`."""
        fields = [own[name] if name in own else getattr(source, name) for name in cls.__struct_fields__]
        return cls(*[PLAIN[type(value)](value) if type(value) in PLAIN else value for value in fields])

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields


class Version(Told, frozen=True):
    """One immutable upload, and where the engine has it. `running`: requests under this name."""

    number: int
    digest: Sha256
    size: int
    peft_type: str
    rank: int
    alpha: float
    target_modules: Sequence[str]
    parameters: int
    base_model: str
    invocation_tokens: Sequence[int]
    tokenizer_digest: Sha256 | None
    profile_digest: Sha256 | None
    uploaded_by: str
    created_at: Moment
    enabled: bool
    pinned: bool
    error: str | None
    state: str
    tier: str
    running: int
    bytes: int
    host_bytes: int


class Shadow(Told, frozen=True):
    """Gets a copy of so many per cent of the requests."""

    version: int
    percent: int


class Route(Told, frozen=True):
    """`version`: the stable one; `weights`: per cent by version number, of the callers or requests that `share_by`
    names."""

    alias: str
    version: int
    weights: dict[str, int]
    share_by: ShareBy
    previous: int | None
    guard: Guard | None
    trip: Trip | None
    shadow: Shadow | None
    updated_at: Moment
    updated_by: str


class WatchedRoute(Route, frozen=True):
    """With how the latest requests went in the process that answers."""

    figures: RouteFigures


class Adapter(Told, frozen=True):
    """A name with its versions, newest first. `current`: what the bare name means to most; `aliases`: name -> stable
    version; `last_used_at`: under this name (null: not in 24 hours; before the server's start: by the hour)."""

    name: str
    enabled: bool
    pinned: bool
    created_at: Moment
    created_by: str
    latest: int | None
    current: int | None
    aliases: dict[str, int]
    routes: dict[str, Route]
    versions: Sequence[Version]
    last_used_at: Moment | None


class ChangedAdapter(Adapter, frozen=True):
    """`moves`: names that other versions answer now, in per cent by version; `last_day`: of versions that lost some.
    `message`: the same in words, with what speaks against a share; empty where there is nothing to say."""

    moves: Sequence[Move]
    message: str


class AddedVersion(Told, frozen=True):
    """`created` is false where the name meant these bytes already. `share`: per cent of the requests for the bare name
    that the version gets; `moves`: as of a change; `message`: the same in words."""

    name: str
    created: bool
    version: Version
    report: Report
    share: int
    moves: Sequence[Move]
    message: str


class RuntimeLora(Told, frozen=True):
    """As SGLang answers: `loaded_adapters` is name -> digest of all that is served."""

    success: bool
    error_message: str | None
    loaded_adapters: dict[str, str]


class Key(Told, frozen=True):
    prefix: str
    name: str
    scopes: Sequence[Scope]
    adapters: Sequence[str] | None
    limits: Quota
    created_by: str
    created_at: Moment
    last_used_at: Moment | None
    expires_at: Moment | None
    revoked_at: Moment | None


class CreatedKey(Key, frozen=True):
    """`token` is told this once."""

    token: str


class User(Told, frozen=True):
    name: str
    role: Role
    created_at: Moment
    password_changed_at: Moment


class Tenant(Told, frozen=True):
    name: str
    created_at: Moment
    limits: Quota
    disabled_at: Moment | None


class AuditEntry(Told, frozen=True):
    id: int
    at: Moment
    tenant: str | None
    actor: str
    actor_name: str | None
    action: str
    subject: str
    detail: dict[str, Any] | None
    hash: str | None
    intact: bool


class Chain(Told, frozen=True):
    """All but `intact` for the operator alone."""

    intact: bool
    rows: int | UnsetType = UNSET
    head: str | UnsetType | None = UNSET
    problem: str | UnsetType | None = UNSET


def adapter_fields(adapter: "views.Adapter") -> dict[str, Any]:
    """Those that an adapter's answer has under other names, or in another form."""
    latest, current = adapter.latest(), adapter.current()
    return {
        "latest": latest and latest.number,
        "current": current and current.number,
        "routes": {name: Route.of(route, **_route_fields(route)) for name, route in adapter.routes.items()},
    }


def watched_json(route: "routes.Route", figures: RouteFigures) -> dict[str, Any]:
    return WatchedRoute.of(route, **_route_fields(route), figures=figures).as_json()


def _route_fields(route: "routes.Route") -> dict[str, Any]:
    shadow = route.shadow and Shadow(version=route.shadow.version, percent=route.shadow.shadow)
    weights = {str(version): weight for version, weight in route.weights.items()}
    return {"version": route.stable, "weights": weights, "shadow": shadow}


def key_json(key: "keys.ApiKey") -> dict[str, Any]:
    return Key.of(key, limits=key.quota).as_json()


def created_key_json(created: "keys.CreatedKey") -> dict[str, Any]:
    return CreatedKey.of(created.key, limits=created.key.quota, token=created.token).as_json()


def user_json(user: "users.User") -> dict[str, Any]:
    return User.of(user).as_json()


def tenant_json(tenant: "tenants.Tenant") -> dict[str, Any]:
    return Tenant.of(tenant, limits=tenant.quota).as_json()


def entry_json(entry: "audit.AuditEntry") -> dict[str, Any]:
    return AuditEntry.of(entry, actor_name=entry.actor_name or None, hash=entry.hash or None).as_json()


def chain_json(verdict: "audit.Verdict") -> dict[str, Any]:
    return Chain.of(verdict, intact=verdict.problem is None).as_json()
