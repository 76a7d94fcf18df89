"""What the management API answers of routes at work, each once: the JSON and its OpenAPI document derive from it."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from loraplex.registry.adapters.routes import ShareBy

Role = Literal["stable", "candidate", "shadow"]


class VersionFigures(Struct, frozen=True, kw_only=True):
    """The last three of a shadow alone."""

    version: int
    role: Role
    percent: int
    actual_percent: float | None
    requests: int
    errors: int
    error_rate: float
    completion_tokens: int
    p95_first_token_ms: float | None
    p95_latency_ms: float | None
    dropped: int | UnsetType = UNSET
    compared: int | UnsetType = UNSET
    equal: int | UnsetType = UNSET


class RouteFigures(Struct, frozen=True, kw_only=True):
    """`actual_percent` counts requests since the shares were set; `warning`: why shares may be far from that."""

    window_seconds: int
    callers_last_day: int
    warning: str | None
    versions: Sequence[VersionFigures]


class TopCaller(Struct, frozen=True, kw_only=True):
    """`name`: the key's label where it may be told."""

    actor: str
    name: str
    requests: int


class Traffic(Struct, frozen=True, kw_only=True):
    """Of the last 24 hours, under all names of the adapter."""

    requests: int
    callers: int
    top_callers: Sequence[TopCaller]


class Move(Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    model: str
    before: dict[str, int]
    after: dict[str, int]
    share_by: ShareBy
    last_day: Traffic
