"""A route's guard as the page shows it: the fields of its form, and a sentence for who may only look."""

from collections.abc import Mapping
from typing import Final

from loraplex.registry.adapters.routes import Guard

from ...units import count_words

PERCENT: Final = "max_error_rate"
LIMITS: Final = {
    PERCENT: "max error rate {} %",
    "max_first_token_ms": "max p95 first token {} ms",
    "max_first_token_ratio": "max p95 first token {} × stable",
    "max_latency_ms": "max p95 latency {} ms",
    "max_latency_ratio": "max p95 latency {} × stable",
}


def guard_fields(guard: Guard | None) -> dict[str, str]:
    """The share of errors in per cent; empty where there is no limit."""
    limits = {} if guard is None else _limits(guard)
    counts = guard or Guard()
    shown = {name: limits.get(name, "") for name in Guard.__struct_fields__}
    return {**shown, "min_requests": str(counts.min_requests), "window_seconds": str(counts.window_seconds)}


def guard_words(guard: Guard | None) -> str:
    if guard is None:
        return "none."
    limits = ", ".join(LIMITS[name].format(shown) for name, shown in _limits(guard).items())
    requests = count_words(guard.min_requests, "request")
    return (
        f"{limits}; evaluated after {requests} within {guard.window_seconds} s. A candidate that breaks a limit is "
        "rolled back automatically."
    )


def _limits(guard: Guard) -> Mapping[str, str]:
    """Those that are set."""
    return {name: f"{100 * limit if name == PERCENT else limit:g}" for name, limit in guard.limits().items()}
