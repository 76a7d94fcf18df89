"""Who leaves the adapter memory next, and why."""

from collections.abc import Iterable

from loraplex.engine.status import AdapterStatus

from ...units import span_words


def next_out(adapters: Iterable[AdapterStatus]) -> AdapterStatus | None:
    """What would be evicted if memory ran out now: of those that may leave, the one not used for longest."""
    idle = [one for one in adapters if one.state == "resident" and not one.pinned and not one.running]
    return max(idle, key=idle_seconds, default=None)


def idle_seconds(status: AdapterStatus) -> float:
    """Without end for one that was never used."""
    since = status.last_used_seconds_ago
    return float("inf") if since is None else since


def idle_words(status: AdapterStatus) -> str:
    since = status.last_used_seconds_ago
    return "never used" if since is None else f"idle {span_words(since)}"
