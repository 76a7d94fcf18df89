"""Tallies: how the latest requests of each version of a route went, in this process."""

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from loraplex.engine.histogram import Histogram

from ..percentile import percentile

LATEST: Final = 2000
"""Outcomes that are kept of a lane."""
SHARE: Final = 0.95
SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
"""Buckets of both times in metrics."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One version's part of a route. `since` None: the stable one; a candidate's share that is given anew is another
    lane. `shadow`: copies, whose answers nobody sees."""

    tenant: str
    adapter: str
    alias: str
    version: int
    since: datetime | None = None
    shadow: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """`failed`: the version's fault, not the client's. Times in seconds; an abort counts with the time it took."""

    at: float
    failed: bool
    first_token: float | None
    latency: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a window. Times are p95 in seconds; None: nothing to take it of."""

    requests: int = 0
    errors: int = 0
    tokens: int = 0
    first_token: float | None = None
    latency: float | None = None

    @property
    def error_rate(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


@dataclass(slots=True)
class Copies:
    """Of a shadow's lane: copies that gave way, and greedy answers that were compared with the user's."""

    dropped: int = 0
    compared: int = 0
    equal: int = 0


@dataclass(slots=True)
class Totals:
    """Since the lane began; for metrics, whose windows others choose."""

    requests: int = 0
    errors: int = 0
    first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def note(self, outcome: Outcome) -> None:
        self.requests += 1
        self.errors += outcome.failed
        if outcome.first_token is not None:
            self.first_token.observe(outcome.first_token)
        if not outcome.failed:
            self.latency.observe(outcome.latency)


@dataclass(slots=True)
class Tally:
    totals: Totals = field(default_factory=Totals)
    outcomes: deque[Outcome] = field(default_factory=lambda: deque(maxlen=LATEST))
    copies: Copies = field(default_factory=Copies)


class Tallies:
    """Bounded: LATEST outcomes for each lane; `keep` drops lanes that are gone.

    The event loop alone notes, counts and drops. Any thread may read; figures sort thousands of numbers, so they are
    read beside the loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._tallies: dict[Lane, Tally] = {}

    @property
    def lanes(self) -> Sequence[Lane]:
        return list(self._tallies)

    def note(self, lane: Lane, failed: bool, first_token: float | None, latency: float, tokens: int) -> None:
        """One request has ended now."""
        outcome = Outcome(self.clock(), failed, first_token, latency, tokens)
        tally = self._of(lane)
        tally.outcomes.append(outcome)
        tally.totals.note(outcome)

    def copies(self, lane: Lane) -> Copies:
        """To be counted up."""
        return self._of(lane).copies

    def copies_of(self, lane: Lane) -> Copies:
        """As they are now."""
        tally = self._tallies.get(lane)
        return Copies() if tally is None else replace(tally.copies)

    def totals(self, lane: Lane) -> Totals:
        tally = self._tallies.get(lane)
        return Totals() if tally is None else tally.totals

    def figures(self, lane: Lane, seconds: float) -> Figures:
        """Of the latest requests, at most so many seconds ago."""
        first, tally = self.clock() - seconds, self._tallies.get(lane)
        # One step of the interpreter: nothing is noted meanwhile.
        noted = list(tally.outcomes) if tally else []
        found = [outcome for outcome in noted if outcome.at >= first]
        firsts = [one.first_token for one in found if one.first_token is not None]
        finished = [one.latency for one in found if not one.failed]
        return Figures(
            requests=len(found),
            errors=sum(one.failed for one in found),
            tokens=sum(one.tokens for one in found),
            first_token=percentile(firsts, SHARE) if firsts else None,
            latency=percentile(finished, SHARE) if finished else None,
        )

    def counts(self, lanes: Sequence[Lane], seconds: float) -> Sequence[int]:
        """Requests of each within the same time: at most so many seconds, and no longer than all of them are kept."""
        noted = [list(self._tallies[lane].outcomes) if lane in self._tallies else [] for lane in lanes]
        kept_since = [outcomes[0].at for outcomes in noted if len(outcomes) == LATEST]
        first = max([self.clock() - seconds, *kept_since])
        return [sum(outcome.at >= first for outcome in outcomes) for outcomes in noted]

    def keep(self, wanted: Collection[Lane]) -> None:
        """Forget all others."""
        self._tallies = {lane: tally for lane, tally in self._tallies.items() if lane in wanted}

    def _of(self, lane: Lane) -> Tally:
        return self._tallies.setdefault(lane, Tally())
