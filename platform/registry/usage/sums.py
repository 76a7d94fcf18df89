"""What the usage ledger's rows come to: the answer of the API, the rows of the page and of the CSV."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType


class UsageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """`unknown`: requests that were lost with a server, and `unknown_tokens`: what was reserved for them."""

    requests: int = 0
    errors: int = 0
    unknown: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    unknown_tokens: int = 0

    @property
    def tokens(self) -> int:
        """That count against quotas."""
        return self.prompt_tokens + self.completion_tokens + self.unknown_tokens


class UsageSum(UsageCounts, frozen=True, kw_only=True):
    """With the columns that were asked to be told apart; the others are not set."""

    day: str | UnsetType = UNSET
    hour: int | UnsetType = UNSET
    actor: str | UnsetType = UNSET
    adapter_name: str | UnsetType = UNSET
    adapter_version: int | UnsetType | None = UNSET
    """None: the base, or a sum of adapters."""
    adapter_digest: str | UnsetType = UNSET


def total_of(rows: Sequence[UsageCounts]) -> UsageCounts:
    return UsageCounts(**{name: sum(getattr(row, name) for row in rows) for name in UsageCounts.__struct_fields__})
