"""What was used today of a quota, as a number and a bar."""

from dataclasses import dataclass

from loraplex.registry.access.quotas import Quota

from ...quotas.quotas import Quotas


@dataclass(frozen=True, slots=True)
class DayUse:
    """`share` in percent, None without a limit. `tone` warns from 80 percent on."""

    words: str
    share: float | None
    tone: str


def day_use(quotas: Quotas, tenant: str, actor: str, quota: Quota) -> DayUse:
    """An empty actor: the whole tenant's."""
    used, limit = quotas.used_today(tenant, actor), quota.tokens_per_day
    if limit is None:
        return DayUse(f"{used:,} tokens", None, "")
    share = min(100.0, 100 * used / limit)
    tone = "bad" if used >= limit else "warn" if share >= 80 else ""
    return DayUse(f"{used:,} of {limit:,} tokens", round(share, 1), tone)
