"""What an alias means: a stable version, and candidates that answer a share of its requests or of its callers.

What is drawn is hashed with each version (rendezvous). By caller, a caller's version changes only when the weights do,
and a candidate whose share grows takes callers from the stable version without giving any back. By request, each
request is drawn for itself, by its id.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from ..errors import InvalidRoute

WHOLE: Final = 100
"""Weights are whole per cent."""
ShareBy = Literal["caller", "request"]
"""What the weights share out."""
CALLER: Final[ShareBy] = "caller"
REQUEST: Final[ShareBy] = "request"
Milliseconds = Annotated[float, Meta(gt=0, le=3_600_000)]
Ratio = Annotated[float, Meta(ge=1, le=1000)]


class Guard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a candidate loses its share by itself. `ratio`: of the stable version's figure; latencies are p95."""

    max_error_rate: Annotated[float, Meta(ge=0, lt=1)] | None = None
    max_first_token_ms: Milliseconds | None = None
    max_first_token_ratio: Ratio | None = None
    max_latency_ms: Milliseconds | None = None
    max_latency_ratio: Ratio | None = None
    min_requests: Annotated[int, Meta(ge=1, le=2000)] = 20
    """Fewer of a version within the window prove nothing."""
    window_seconds: Annotated[int, Meta(ge=10, le=86_400)] = 600

    def check(self) -> None:
        """Raise InvalidRoute for a guard that watches nothing."""
        if not self.limits():
            names = ", ".join(name for name in self.__struct_fields__ if name.startswith("max_"))
            raise InvalidRoute(f"A guard needs at least one limit: {names}.", "guard")

    def limits(self) -> Mapping[str, float]:
        """Those that are set, by name."""
        found = ((name, getattr(self, name)) for name in self.__struct_fields__ if name.startswith("max_"))
        return {name: limit for name, limit in found if limit is not None}


def guard_of(fields: Mapping[str, object]) -> Guard:
    """From fields as people give them. Raises InvalidRoute."""
    try:
        guard = msgspec.convert(fields, Guard)
    except msgspec.ValidationError as error:
        raise InvalidRoute(f"The guard is invalid: {error}.", "guard") from None
    guard.check()
    return guard


class Trip(msgspec.Struct, frozen=True):
    """The guard took `version` out of the route; `reason` is a sentence with the figures."""

    version: int
    weight: int
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for an alias: `caller` is the end user, key or login; `request` is the id of the request, None where
    nothing is to be answered by the model."""

    caller: str
    request: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Per cent: `weight` of the requests or callers get its answers, it gets a copy of `shadow` of the requests."""

    version: int
    weight: int
    shadow: int
    since: datetime
    """When it last began to have a weight."""


@dataclass(frozen=True, slots=True)
class Route:
    alias: str
    stable: int
    candidates: tuple[Candidate, ...]
    share_by: ShareBy
    previous: int | None
    """The stable version before."""
    guard: Guard | None
    trip: Trip | None
    updated_at: datetime
    updated_by: str

    @property
    def etag(self) -> str:
        """Which state of the route this is; every change makes another."""
        return etag_of(self.updated_at)

    @property
    def weights(self) -> Mapping[int, int]:
        """Version -> per cent; the stable one first, also when it has none left."""
        shares = {candidate.version: candidate.weight for candidate in self.candidates if candidate.weight}
        return {self.stable: WHOLE - sum(shares.values()), **shares}

    def drawn_by(self, asker: Asker) -> str | None:
        """What decides for `asker`; None: no request does, where requests are shared out."""
        return asker.caller if self.share_by == CALLER else asker.request

    @property
    def shadow(self) -> Candidate | None:
        """The version that gets copies."""
        return next((candidate for candidate in self.candidates if candidate.shadow), None)


def etag_of(updated_at: datetime) -> str:
    return updated_at.isoformat()


def choose(weights: Mapping[int, int], place: str, drawn: str) -> int:
    """The version for what is `drawn`, a caller or a request, always the same one; `place` tells the routes apart."""
    return min(weights, key=lambda version: _distance(f"{place}@{version}\0{drawn}", weights[version]))


def share_by_of(text: str) -> ShareBy:
    """Raises InvalidRoute."""
    found = next((one for one in get_args(ShareBy) if one == text), None)
    if found is None:
        raise InvalidRoute(f"share_by must be caller or request; got {text[:40]!a}.", "share_by")
    known: ShareBy = found
    return known


def check_weights(weights: Mapping[int, int], stable: int) -> None:
    """Raise InvalidRoute unless they are whole per cent that add up to 100. Candidates are looked at first: where the
    `stable` version has the rest, nobody has typed its weight."""
    candidates = {version: weight for version, weight in weights.items() if version != stable}
    for version, weight in candidates.items():
        if not 0 <= weight <= WHOLE:
            raise InvalidRoute(
                f"The weight of version {version} is {weight}; it must be from 0 to 100 per cent, and the weights of "
                "all candidates may add up to 100 at most."
            )
    if sum(candidates.values()) > WHOLE:
        given = ", ".join(f"{weight} for version {version}" for version, weight in candidates.items() if weight)
        raise InvalidRoute(
            f"The weights of the candidates add up to {sum(candidates.values())} ({given}); they are per cent and may "
            "add up to 100 at most."
        )
    if not 0 <= weights.get(stable, 0) <= WHOLE:
        raise InvalidRoute(f"The weight of version {stable} is {weights[stable]}; it must be from 0 to 100 per cent.")
    if sum(weights.values()) != WHOLE:
        raise InvalidRoute(f"The weights add up to {sum(weights.values())}; they must add up to 100 per cent.")


def check_share(percent: int) -> None:
    """Raise InvalidRoute unless it is a share of requests to copy."""
    if not 1 <= percent <= WHOLE:
        raise InvalidRoute(f"A shadow gets 1 to 100 per cent of the requests; got {percent}.", "percent")


def _distance(text: str, weight: int) -> float:
    """Exponential with the weight as its rate: the least of several is one's own with the share of one's weight."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    even = (int.from_bytes(digest, "big") + 1) / 2**64
    return -math.log(even) / weight if weight else math.inf
