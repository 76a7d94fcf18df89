"""Quotas: what a request may still use is reserved at its admission, settled at its end, and given back exactly once.

Limits per minute and of concurrency hold for each API process by itself. Tokens of a day are those of the ledger, read
anew every few seconds, plus those that this process has counted since.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Protocol

from loraplex.registry.access.quotas import Quota
from loraplex.registry.database.tables.usage import ADAPTER_LENGTH
from loraplex.registry.snapshot import Snapshots
from loraplex.registry.usage.ledger import Account, Books, Ledger, OpenEntry
from loraplex.registry.usage.usage import SHADOW

from .meters import Meter, Usage
from .rate_limits import Limit, concurrency_refusal, day_refusal, rate_headers, rate_refusal, too_large_refusal

Owner = tuple[str, str]
"""Tenant and actor; an empty actor is the tenant as a whole."""
UNBOUNDED_OUTPUT: Final = 1024
"""Tokens reserved for the output of a request that names no bound; what it makes beyond is settled at its end."""


def utc_moment() -> datetime:
    return datetime.now(UTC)


class Quotas:
    """`clock` counts seconds, `now` tells the day. All but `read_day` runs on the event loop."""

    def __init__(
        self,
        ledger: Ledger,
        snapshots: Snapshots,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_moment,
    ) -> None:
        self.ledger, self.snapshots, self.clock, self.now = ledger, snapshots, clock, now
        self._meters: dict[Owner, Meter] = {}
        self._of_day: Mapping[Owner, int] = {}
        self._day = ""

    @contextmanager
    def admit(self, tenant: str, actor: str, quota: Quota, books: Books | None = None) -> Iterator["Admission"]:
        """The right to run one request, until the block ends. `quota`: the actor's own. `books`: where it is booked,
        if not in the ledger at once. Raises ApiError 429."""
        with self._admit(self._limits(tenant, actor, quota), books) as admission:
            yield admission

    @contextmanager
    def admit_shadow(self) -> Iterator["Admission"]:
        """The same for a copy, which no limit holds for; its account is that of the actor SHADOW."""
        with self._admit(()) as admission:
            yield admission

    @contextmanager
    def _admit(self, limits: Sequence[Limit], books: Books | None = None) -> Iterator["Admission"]:
        admission = Admission(self, limits, books or self.ledger)
        admission.begin()
        try:
            yield admission
        finally:
            admission.end()

    def note_day(self, day: str, booked: Mapping[Owner, int]) -> None:
        """What the ledger's rows say of a day, read after they were flushed and just now."""
        tokens = dict(booked)
        for owner, used in self.ledger.unbooked_tokens(day).items():
            tokens[owner] = tokens.get(owner, 0) + used
        for (tenant, actor), used in list(tokens.items()):
            if actor != SHADOW:
                tokens[tenant, ""] = tokens.get((tenant, ""), 0) + used
        self._day, self._of_day = day, tokens
        self._forget_idle()
        for owner, meter in self._meters.items():
            meter.day, meter.of_day = day, tokens.get(owner, 0)

    def used_today(self, tenant: str, actor: str) -> int:
        """Tokens, reserved ones not among them; an empty actor: of the whole tenant. At most seconds old."""
        if self._day != self.now().date().isoformat():
            return 0
        meter = self._meters.get((tenant, actor))
        return self._of_day.get((tenant, actor), 0) if meter is None else meter.of_day

    def _limits(self, tenant: str, actor: str, quota: Quota) -> Sequence[Limit]:
        """Those that hold here: the actor's and the tenant's."""
        limits = []
        if not quota.is_open:
            limits.append(Limit(self._meter((tenant, actor)), quota, "key"))
        of_all = self.snapshots.current.tenants[tenant].quota
        if not of_all.is_open:
            limits.append(Limit(self._meter((tenant, "")), of_all, "tenant"))
        return limits

    def _meter(self, owner: Owner) -> Meter:
        meter = self._meters.get(owner)
        if meter is None:
            meter = self._meters[owner] = Meter(day=self._day, of_day=self._of_day.get(owner, 0))
        return meter

    def _forget_idle(self) -> None:
        """Meters of keys that are gone or have no quota any more must not pile up."""
        now, snapshot = self.clock(), self.snapshots.current
        known = {(key.tenant, f"key:{key.prefix}"): key.quota for key, _ in snapshot.keys.keys.values()}
        known |= {(tenant.name, ""): tenant.quota for tenant in snapshot.tenants.values()}
        for owner, meter in list(self._meters.items()):
            if meter.is_idle(now, known.get(owner, Quota())):
                del self._meters[owner]


class Running(Protocol):
    """What a request runs, as far as it is settled here."""

    @property
    def worked(self) -> bool:
        """Whether the engine had anything to do with it."""

    @property
    def failed(self) -> bool: ...

    @property
    def usage(self) -> Usage: ...


class Admission:
    """One request's share of every limit that holds for it."""

    def __init__(self, quotas: Quotas, limits: Sequence[Limit], books: Books) -> None:
        self._quotas, self._limits, self._books = quotas, limits, books
        self._reserved = 0
        self._entry: OpenEntry | None = None
        self._generations: Sequence[Running] = ()
        self._ended = False

    def begin(self) -> None:
        """Before anything is worked out for the request: one of its places and one of its requests per minute."""
        now, today = self._quotas.clock(), self._today()
        for limit in self._limits:
            quota, meter = limit.quota, limit.meter
            if quota.max_concurrent is not None and meter.running >= quota.max_concurrent:
                raise concurrency_refusal(limit, self.headers())
            if quota.requests_per_minute is not None:
                wait = meter.requests.wait(now, quota.requests_per_minute, 1)
                if wait > 0:
                    raise rate_refusal(limit, "requests", quota.requests_per_minute, wait, self.headers())
            if quota.tokens_per_day is not None and meter.left_today(today, quota.tokens_per_day) < 1:
                raise day_refusal(limit, self._quotas.now(), self.headers())
        for limit in self._limits:
            limit.meter.running += 1
            if limit.quota.requests_per_minute is not None:
                limit.meter.requests.take(1)

    def reserve(self, account: Account, tokens: int) -> None:
        """Of prompt and output together. ApiError 429 when it is more than is left."""
        now, today = self._quotas.clock(), self._today()
        for limit in self._limits:
            self._check_tokens(limit, tokens, now, today)
        for limit in self._limits:
            limit.meter.held += tokens
            if limit.quota.tokens_per_minute is not None:
                limit.meter.tokens.take(tokens)
        self._reserved = tokens
        self._entry = self._books.open(account, tokens)

    def run(self, generations: Sequence[Running]) -> None:
        """What the reservation is for; their usage is what the request is settled with."""
        self._generations = generations

    def headers(self) -> dict[str, str]:
        """How much is left, as OpenAI's clients read it; empty where nothing is limited."""
        return rate_headers(self._limits, self._quotas.clock(), self._quotas.now())

    def end(self) -> None:
        """However the request ended. Called once."""
        assert not self._ended
        self._ended = True
        used = 0
        if self._entry is not None:
            used = self._settle(self._entry)
        today = self._today()
        for limit in self._limits:
            meter = limit.meter
            meter.running -= 1
            meter.held -= self._reserved
            if limit.quota.tokens_per_minute is not None:
                meter.tokens.take(used - self._reserved)
            meter.left_today(today, 0)
            meter.of_day += used

    def _check_tokens(self, limit: Limit, tokens: int, now: float, today: str) -> None:
        per_minute, per_day = limit.quota.tokens_per_minute, limit.quota.tokens_per_day
        if per_minute is not None:
            if tokens > per_minute:
                raise too_large_refusal(limit, per_minute, tokens, self.headers())
            wait = limit.meter.tokens.wait(now, per_minute, tokens)
            if wait > 0:
                raise rate_refusal(limit, "tokens", per_minute, wait, self.headers(), tokens)
        if per_day is not None and limit.meter.left_today(today, per_day) < tokens:
            raise day_refusal(limit, self._quotas.now(), self.headers(), tokens)

    def _settle(self, entry: OpenEntry) -> int:
        ran = [generation for generation in self._generations if generation.worked]
        usage = sum((generation.usage for generation in ran), Usage())
        self._books.settle(
            entry,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            error=any(generation.failed for generation in self._generations),
        )
        return usage.prompt_tokens + usage.completion_tokens

    def _today(self) -> str:
        return self._quotas.now().date().isoformat()


def tokens_to_reserve(prompt_tokens: int, output_tokens: int | None, choices: int, room: int) -> int:
    """Of one prompt. `output_tokens`: as the request bounds it; `room`: what fits beside the prompt."""
    output = min(room, UNBOUNDED_OUTPUT) if output_tokens is None else output_tokens
    return prompt_tokens + choices * output


def account_of(tenant: str, actor: str, adapters: Mapping[str, str], base: str) -> Account:
    """`adapters`: name -> digest of what the request runs with; none: the base. A sum is an account of its own."""
    if not adapters:
        return Account(tenant, actor, "", base)
    names, digests = sorted(adapters), sorted(adapters.values())
    digest = digests[0] if len(digests) == 1 else hashlib.sha256("+".join(digests).encode()).hexdigest()
    return Account(tenant, actor, digest, "+".join(names)[:ADAPTER_LENGTH])
