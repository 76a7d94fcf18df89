"""RequestLog: the latest requests of each tenant, refused ones too. Figures and names, never a text of a prompt."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

MOST: Final = 10_000
"""Of all tenants together."""
ABORT: Final = "abort"
ERROR: Final = "error"
REFUSED: Final = "refused"


@dataclass(frozen=True, slots=True)
class Phases:
    """Where a request's time went, in seconds: waiting for its turn, for its adapters, until the first token, until the
    last one."""

    queue: float
    load: float
    prefill: float
    decode: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """One line of the latest traffic, for the dashboard. Times in seconds; `at` is the wall clock."""

    at: float
    tenant: str
    """Empty: of a request whose key is none."""
    actor: str = ""
    request_id: str
    model: str
    version: str = ""
    """Numbers of the adapter versions that answered; empty: the base alone, or nobody did."""
    digests: tuple[str, ...] = ()
    """Of the adapters it ran with; none: the base alone."""
    status: str
    """A finish reason, ABORT, ERROR or REFUSED."""
    code: int = 0
    """HTTP status of a refusal."""
    reason: str = ""
    """What the client was told, where it failed or was refused."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_token: float | None = None
    duration: float
    phases: Phases | None = None
    """None: no token came."""


class RequestLog:
    """At most MOST requests. When they are more, a tenant that has more than its share loses its oldest one, so that
    nobody's traffic pushes out another's, or tells of it."""

    def __init__(self, since: float, most: int = MOST) -> None:
        """`since`: when it began, by the wall clock."""
        self._since, self._most = since, most
        self._of_tenant: dict[str, deque[FinishedRequest]] = {}
        self._kept_since: dict[str, float] = {}
        """Of tenants that have lost some: when the newest lost one ended."""
        self._count = 0

    def add(self, request: FinishedRequest) -> None:
        own = self._of_tenant.setdefault(request.tenant, deque())
        own.append(request)
        self._count += 1
        if self._count > self._most:
            share = max(1, self._most // len(self._of_tenant))
            self._drop(own if len(own) > share else max(self._of_tenant.values(), key=len))

    def of(self, tenant: str | None) -> Sequence[FinishedRequest]:
        """Newest first; None: of all tenants."""
        if tenant is not None:
            return list(reversed(self._of_tenant.get(tenant, ())))
        return sorted(chain.from_iterable(self._of_tenant.values()), key=lambda one: one.at, reverse=True)

    def kept_since(self, tenant: str | None) -> float:
        """Requests that ended before are not known."""
        if tenant is None:
            return max(self._kept_since.values(), default=self._since)
        return self._kept_since.get(tenant, self._since)

    def _drop(self, longest: deque[FinishedRequest]) -> None:
        lost = longest.popleft()
        self._count -= 1
        self._kept_since[lost.tenant] = lost.at
        if not longest:
            del self._of_tenant[lost.tenant]
