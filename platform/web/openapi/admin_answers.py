"""What the management API answers beside `api/answers.py`, as types that a document can be made of."""

from typing import Literal, NotRequired, TypedDict

from loraplex.engine.certify.certificate import Certificate
from loraplex.engine.protocol import EngineInfo, EngineStatus
from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.adapters.routes import ShareBy
from loraplex.registry.report import Report

from ..api.answers import Adapter, AuditEntry, Chain, Key, Route, Tenant, User, Version
from ..api.fields import Moment, Sha256
from ..settings.in_force import SettingInForce


class VersionFigures(TypedDict):
    """The last three of a shadow alone."""

    version: int
    role: Literal["stable", "candidate", "shadow"]
    percent: int
    actual_percent: float | None
    requests: int
    errors: int
    error_rate: float
    completion_tokens: int
    p95_first_token_ms: float | None
    p95_latency_ms: float | None
    dropped: NotRequired[int]
    compared: NotRequired[int]
    equal: NotRequired[int]


class RouteFigures(TypedDict):
    """`actual_percent` counts requests since the shares were set; `warning`: why shares may be far from that."""

    window_seconds: int
    callers_last_day: int
    warning: str | None
    versions: list[VersionFigures]


class WatchedRoute(Route, frozen=True):
    """With how the latest requests went in the process that answers."""

    figures: RouteFigures


class RouteList(TypedDict):
    data: list[WatchedRoute]


class Profile(TypedDict):
    """`profile`: the fields that are set."""

    version: int
    digest: Sha256 | None
    profile: ServingProfile | None


class AdapterList(TypedDict):
    generation: int | None
    data: list[Adapter]


class TopCaller(TypedDict):
    """`name`: the key's label where it may be told."""

    actor: str
    name: str
    requests: int


class Traffic(TypedDict):
    """Of the last 24 hours, under all names of the adapter."""

    requests: int
    callers: int
    top_callers: list[TopCaller]


# `from` is a word of Python.
Move = TypedDict(
    "Move",
    {
        "model": str,
        "from": dict[str, int],
        "to": dict[str, int],
        "share_by": ShareBy,
        "last_day": Traffic,
    },
)


class ChangedAdapter(Adapter, frozen=True):
    """`moves`: names that other versions answer now, in per cent by version; `last_day`: of versions that lost some.
    `message`: the same in words, with what speaks against a share; empty where there is nothing to say."""

    moves: list[Move]
    message: str


class AddedVersion(TypedDict):
    """`created` is false where the name meant these bytes already. `share`: per cent of the requests for the bare name
    that the version gets; `moves`: as of a change; `message`: the same in words."""

    name: str
    created: bool
    version: Version
    report: Report
    share: int
    moves: list[Move]
    message: str


class Digest(TypedDict):
    digest: Sha256


class Receipt(TypedDict):
    file: str
    sha256: Sha256
    size: int
    already_here: bool


class Received(TypedDict):
    """`received`: bytes that are here."""

    file: str
    sha256: Sha256
    received: int
    already_here: bool


class Attempt(TypedDict):
    """`cause`: what went wrong in the server, for its operator alone."""

    state: str
    progress: float | None
    problem: str | None
    cause: str | None
    requested_by: str | None
    requested_at: Moment
    ended_at: Moment | None


class CertificateStanding(TypedDict):
    """`certificate` holds while `valid`; `changes` says what no longer is as it was measured."""

    state: Literal["none", "waiting", "running", "failed", "valid", "outdated"]
    valid: bool
    changes: list[str]
    obstacle: str | None
    attempt: Attempt | None
    digest: Sha256 | None
    certificate: Certificate | None


class GoldenPrompts(TypedDict):
    prompts: list[str] | None


class Engine(TypedDict):
    state: str
    ready: bool
    restarts: int
    start_error: str | None
    heartbeat_age: float | None
    generation: int
    in_step: bool
    failures: dict[str, str]
    info: EngineInfo | None
    status: EngineStatus | None
    names: dict[str, str]


class SettingList(TypedDict):
    data: list[SettingInForce]
    obstacle: str


class CreatedKey(Key, frozen=True):
    """`token` is told this once."""

    token: str


class KeyList(TypedDict):
    data: list[Key]


class Me(TypedDict):
    tenant: str
    actor: str
    permissions: list[str]


class UserList(TypedDict):
    data: list[User]


class TenantList(TypedDict):
    data: list[Tenant]


class Counts(TypedDict):
    requests: int
    errors: int
    unknown: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    unknown_tokens: int


class UsageRow(Counts):
    """With the columns that were asked to be told apart."""

    day: NotRequired[str]
    hour: NotRequired[int]
    actor: NotRequired[str]
    adapter_name: NotRequired[str]
    adapter_version: NotRequired[int | None]
    adapter_digest: NotRequired[str]


class UsageSums(TypedDict):
    data: list[UsageRow]
    total: Counts


class AuditLog(TypedDict):
    data: list[AuditEntry]
    chain: NotRequired[Chain]


class RuntimeLora(TypedDict):
    """As SGLang answers: `loaded_adapters` is name -> digest of all that is served."""

    success: bool
    error_message: str | None
    loaded_adapters: dict[str, str]
