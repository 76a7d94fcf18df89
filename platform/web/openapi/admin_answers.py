"""What the management API answers beside `api/answers.py`, as types that a document can be made of."""

from typing import NotRequired, TypedDict

from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.report import Report

from ..api.answers import Adapter, AuditEntry, Chain, Key, Route, Tenant, User, Version
from ..api.fields import Sha256
from ..routing.answers import Move, RouteFigures
from ..settings.in_force import SettingInForce


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


class GoldenPrompts(TypedDict):
    prompts: list[str] | None


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
