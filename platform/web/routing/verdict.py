"""Does a candidate hold what its guard asks? Figures in, a sentence out."""

from collections.abc import Iterator
from dataclasses import dataclass

from loraplex.registry.adapters.routes import Guard

from ..units import percent_words
from .tallies import Figures


@dataclass(frozen=True, slots=True)
class Breach:
    """`reason`: a sentence with the figures, which stand in `figures` once more, for programs."""

    reason: str
    figures: dict[str, float]


def judge(guard: Guard, version: int, candidate: Figures, stable: Figures) -> Breach | None:
    """The first limit that the candidate breaks; None while it breaks none, or too little is known."""
    if candidate.requests < guard.min_requests:
        return None
    window = f"in the last {guard.window_seconds / 60:g} min"
    reason = next(_reasons(guard, candidate, stable), None)
    return reason and Breach(f"Version {version} {reason[0]} {window}; the guard allows {reason[1]}.", reason[2])


def _reasons(guard: Guard, candidate: Figures, stable: Figures) -> Iterator[tuple[str, str, dict[str, float]]]:
    """What it did, what it may, the figures."""
    limit, known = guard.max_error_rate, stable if stable.requests >= guard.min_requests else Figures()
    # What fails as often with the stable version is no fault of the candidate.
    if limit is not None and candidate.error_rate > limit and candidate.error_rate > known.error_rate:
        did = f"failed {candidate.errors} of {candidate.requests} requests ({percent_words(candidate.error_rate)})"
        figures = {"requests": candidate.requests, "error_rate": candidate.error_rate, "limit": limit}
        yield did, percent_words(limit), figures
    yield from _slow(
        "time to first token",
        candidate.first_token,
        known.first_token,
        guard.max_first_token_ms,
        guard.max_first_token_ratio,
    )
    yield from _slow("latency", candidate.latency, known.latency, guard.max_latency_ms, guard.max_latency_ratio)


def _slow(
    what: str, seconds: float | None, stable: float | None, most_ms: float | None, most_ratio: float | None
) -> Iterator[tuple[str, str, dict[str, float]]]:
    if seconds is None:
        return
    did, name = f"had a p95 {what} of {1000 * seconds:,.0f} ms", what.replace(" ", "_")
    if most_ms is not None and 1000 * seconds > most_ms:
        yield did, f"{most_ms:,g} ms", {f"p95_{name}_ms": 1000 * seconds, "limit": most_ms}
    if most_ratio is not None and stable is not None and seconds > most_ratio * stable:
        figures = {f"p95_{name}_ms": 1000 * seconds, f"stable_p95_{name}_ms": 1000 * stable, "limit": most_ratio}
        yield did, f"{most_ratio:g} times the stable version's {1000 * stable:,.0f} ms", figures
