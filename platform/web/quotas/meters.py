"""Meters: what one key or one tenant uses now, counted in this process."""

from dataclasses import dataclass, field
from typing import Final

from loraplex.registry.access.quotas import Quota

MINUTE: Final = 60.0


@dataclass(slots=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the completion tokens, where reasoning is looked for."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def as_json(self) -> dict[str, object]:
        document: dict[str, object] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        details = {"completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens}}
        return document | (details if self.reasoning_tokens else {})


@dataclass(slots=True)
class Bucket:
    """What of a limit per minute is used up; it refills steadily. All methods take the time and the limit, which may
    change. Settling may use up more than there is: then it is the next ones that wait."""

    used: float = 0.0
    at: float = 0.0

    def left(self, now: float, limit: int) -> float:
        self.used = max(0.0, self.used - (now - self.at) * limit / MINUTE)
        self.at = now
        return limit - self.used

    def wait(self, now: float, limit: int, amount: int) -> float:
        """Seconds until `amount` are left; 0 when they are."""
        return max(0.0, (amount - self.left(now, limit)) * MINUTE / limit)

    def refill(self, now: float, limit: int) -> float:
        """Seconds until all of it is left."""
        return (limit - self.left(now, limit)) * MINUTE / limit

    def take(self, amount: int) -> None:
        self.used = max(0.0, self.used + amount)


@dataclass(slots=True)
class Meter:
    """`of_day`: tokens used in `day`; `held`: tokens reserved by requests that run."""

    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)
    running: int = 0
    held: int = 0
    day: str = ""
    of_day: int = 0

    def left_today(self, today: str, limit: int) -> int:
        if self.day != today:
            self.day, self.of_day = today, 0
        return limit - self.of_day - self.held

    def is_idle(self, now: float, quota: Quota) -> bool:
        """Whether a new one would say the same; but for the day, which the ledger knows."""
        rates = (self.requests, quota.requests_per_minute), (self.tokens, quota.tokens_per_minute)
        return not self.running and all(limit is None or bucket.left(now, limit) >= limit for bucket, limit in rates)
