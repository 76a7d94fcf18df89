"""What is said of limits: refusals with status 429, and the headers that OpenAI's clients read."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from loraplex.registry.access.quotas import Quota

from ..http.errors import ApiError
from .meters import Bucket, Meter

LONGEST_RETRY: Final = 60
"""Seconds that OpenAI's clients wait at most; to wait for tomorrow they must be told not to."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota and how much of it is used. `owner`: key or tenant."""

    meter: Meter
    quota: Quota
    owner: str


def rate_headers(limits: Sequence[Limit], now: float, moment: datetime) -> dict[str, str]:
    """`x-ratelimit-*` of requests and tokens a minute, as OpenAI has them, of tokens a day and of requests at once,
    each of the limit that is nearest to its end. `now` counts seconds, `moment` tells the day."""
    return {**_minute_headers(limits, now), **_day_headers(limits, moment), **_concurrency_headers(limits)}


def _minute_headers(limits: Sequence[Limit], now: float) -> dict[str, str]:
    headers: dict[str, str] = {}
    for kind, of_quota, of_meter in KINDS:
        found = [(of_meter(one.meter), limit) for one in limits if (limit := of_quota(one.quota)) is not None]
        if found:
            bucket, limit = min(found, key=lambda pair: pair[0].left(now, pair[1]))
            headers |= _headers(kind, limit, math.floor(bucket.left(now, limit)))
            headers[f"x-ratelimit-reset-{kind}"] = span(bucket.refill(now, limit))
    return headers


def _day_headers(limits: Sequence[Limit], moment: datetime) -> dict[str, str]:
    today = moment.date().isoformat()
    found = [
        (one.meter.left_today(today, limit), limit) for one in limits if (limit := one.quota.tokens_per_day) is not None
    ]
    if not found:
        return {}
    left, limit = min(found)
    return {**_headers("tokens-day", limit, left), "x-ratelimit-reset-tokens-day": span(_seconds_left(moment))}


def _concurrency_headers(limits: Sequence[Limit]) -> dict[str, str]:
    """Without a time: it ends when requests do."""
    found = [(limit - one.meter.running, limit) for one in limits if (limit := one.quota.max_concurrent) is not None]
    if not found:
        return {}
    left, limit = min(found)
    return _headers("concurrent", limit, left)


def _headers(kind: str, limit: int, left: int) -> dict[str, str]:
    return {f"x-ratelimit-limit-{kind}": str(limit), f"x-ratelimit-remaining-{kind}": str(max(0, left))}


def _seconds_left(moment: datetime) -> float:
    """Of the day."""
    midnight = (moment + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight - moment).total_seconds()


def rate_refusal(
    limit: Limit, kind: str, per_minute: int, wait: float, headers: Mapping[str, str], asked: int = 1
) -> ApiError:
    wanted = f" and this request asks for {asked:,}" if kind == "tokens" else ""
    message = f"This {limit.owner} may use {per_minute:,} {kind} per minute{wanted}. Try again in {span(wait)}."
    return _refusal(message, kind, "rate_limit_exceeded", wait, headers)


def concurrency_refusal(limit: Limit, headers: Mapping[str, str]) -> ApiError:
    most = limit.quota.max_concurrent
    message = f"This {limit.owner} may have {most} requests in flight, its limit. Try again when one has ended."
    return _refusal(message, "requests", "rate_limit_exceeded", 1, headers)


def day_refusal(limit: Limit, now: datetime, headers: Mapping[str, str], asked: int = 0) -> ApiError:
    wanted = f" This request asks for {asked:,}." if asked else ""
    most = f"{limit.quota.tokens_per_day:,} tokens a day"
    message = f"This {limit.owner} may use {most}, and too few are left.{wanted} Days begin at 00:00 UTC."
    return _refusal(message, "tokens", "insufficient_quota", _seconds_left(now), headers)


def too_large_refusal(limit: Limit, per_minute: int, asked: int, headers: Mapping[str, str]) -> ApiError:
    message = (
        f"This request asks for {asked:,} tokens of prompt and output, and this {limit.owner} may use {per_minute:,} "
        "per minute. Shorten the prompt or lower max_tokens."
    )
    return ApiError(
        429, message, type="tokens", code="request_too_large", headers={**headers, "x-should-retry": "false"}
    )


def span(seconds: float) -> str:
    """Rounded up, as Go writes it: 120ms, 7s, 6m0s, 20h16m51s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{rest}s"


def _refusal(message: str, kind: str, code: str, wait: float, headers: Mapping[str, str]) -> ApiError:
    seconds = max(1, math.ceil(wait))
    own = {"retry-after": str(seconds)}
    if seconds > LONGEST_RETRY:
        own["x-should-retry"] = "false"
    return ApiError(429, message, type=kind, code=code, headers={**headers, **own})


KINDS: Final[tuple[tuple[str, Callable[[Quota], int | None], Callable[[Meter], Bucket]], ...]] = (
    ("requests", lambda quota: quota.requests_per_minute, lambda meter: meter.requests),
    ("tokens", lambda quota: quota.tokens_per_minute, lambda meter: meter.tokens),
)
