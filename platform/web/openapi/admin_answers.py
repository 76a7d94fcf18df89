"""What the management API answers in lists, and in a few words, as types that a document can be made of."""

from typing import NotRequired, TypedDict

from loraplex.registry.adapters.profiles import ServingProfile

from ..api.answers import Adapter, AuditEntry, Chain, Key, Tenant, User, WatchedRoute
from ..api.fields import Sha256
from ..settings.in_force import SettingInForce


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


class Digest(TypedDict):
    digest: Sha256


class GoldenPrompts(TypedDict):
    prompts: list[str] | None


class SettingList(TypedDict):
    data: list[SettingInForce]
    obstacle: str


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


class AuditLog(TypedDict):
    data: list[AuditEntry]
    chain: NotRequired[Chain]
