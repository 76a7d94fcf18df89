"""Traffic: what some versions of an adapter answered in the last day, and whom, as the ledger has it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loraplex.registry.adapters.views import Adapter
from loraplex.registry.usage.usage import SHADOW, CallerUse

from ..units import count_words
from . import answers
from .answers import TopCaller
from .callers import RecentCallers

MOST_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class Traffic:
    """`callers`: requests by `key:<prefix>` or `user:<name>`, most first."""

    callers: Mapping[str, int]

    @property
    def requests(self) -> int:
        return sum(self.callers.values())

    def words(self, names: Mapping[str, str]) -> str:
        """`names`: prefix -> label, of the keys whose labels may be told."""
        if not self.callers:
            return "no requests in the last day"
        asked = f"{count_words(self.requests, 'request')} of {count_words(len(self.callers), 'caller')} in the last day"
        most = list(self.callers.items())[:MOST_NAMES]
        told = ", ".join(f"{caller_name(actor, names)} {count:,}" for actor, count in most)
        return f"{asked} ({told}{', …' if len(self.callers) > MOST_NAMES else ''})"

    def answer(self, names: Mapping[str, str]) -> answers.Traffic:
        most = list(self.callers.items())[:MOST_NAMES]
        top = [TopCaller(actor=actor, name=caller_name(actor, names), requests=count) for actor, count in most]
        return answers.Traffic(requests=self.requests, callers=len(self.callers), top_callers=top)


def traffic_of(uses: Sequence[CallerUse], adapter: Adapter, versions: Collection[int] | None = None) -> Traffic:
    """Of `uses`, those of these versions; None: of all that the adapter has."""
    digests = {one.digest for one in adapter.versions if versions is None or one.number in versions}
    callers = Counter[str]()
    for use in uses:
        if use.digest in digests and use.actor != SHADOW:
            callers[use.actor] += use.requests
    return Traffic(dict(callers.most_common()))


def booked_callers(uses: Sequence[CallerUse]) -> int:
    """Keys and logins."""
    return len({use.actor for use in uses} - {SHADOW})


def callers_of_day(recent: RecentCallers, adapter: Adapter, uses: Sequence[CallerUse]) -> int:
    """End users where requests name them. `uses`: of the last day."""
    return max(booked_callers(uses), recent.count(adapter.tenant, adapter.name))


def caller_name(actor: str, names: Mapping[str, str]) -> str:
    kind, _, name = actor.partition(":")
    if kind == "key":
        return names.get(name, f"lp-{name}…")
    return name or actor
