"""Quota: how much a key, or a whole tenant, may use."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from ..errors import RegistryError

if TYPE_CHECKING:
    from ..database import tables

LARGEST: Final = 2**62
Limit = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1, "maximum": LARGEST})]
"""Described, but checked in words of our own."""


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None: no limit. Tokens are those of prompts and of output."""

    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    max_concurrent: Limit | None = None
    tokens_per_day: Limit | None = None

    @property
    def is_open(self) -> bool:
        return self == OPEN


OPEN: Final = Quota()


def check_quota(quota: Quota) -> Quota:
    """The quota itself; RegistryError for a limit that is none."""
    for name, limit in msgspec.structs.asdict(quota).items():
        if limit is not None and not 1 <= limit <= LARGEST:
            raise RegistryError(f"{name} must be at least 1, or left out for no limit; got {limit}.")
    return quota


def quota_of(row: "tables.ApiKey | tables.Tenant") -> Quota:
    return Quota(row.requests_per_minute, row.tokens_per_minute, row.max_concurrent, row.tokens_per_day)


def set_quota(row: "tables.ApiKey | tables.Tenant", quota: Quota) -> dict[str, Any]:
    """Write it into the row; what an audit row says of it."""
    limits = msgspec.structs.asdict(check_quota(quota))
    for name, limit in limits.items():
        setattr(row, name, limit)
    return {name: limit for name, limit in limits.items() if limit is not None}
