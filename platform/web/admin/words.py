"""Numbers and states in words a person reads; the same ones on every page."""

from datetime import UTC, datetime

from loraplex.engine.protocol import AdapterStatus

TONES = {"resident": "good", "registered": "", "loading": "warn", "failed": "bad"}


def size_words(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def age_words(moment: datetime) -> str:
    return span_words((datetime.now(UTC) - moment).total_seconds()) + " ago"


def span_words(seconds: float) -> str:
    for limit, unit, divisor in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def residency_words(status: AdapterStatus) -> str:
    match status.state:
        case "resident":
            return "Ready · in memory"
        case "loading":
            return "Loading"
        case "failed":
            return f"Failed: {status.error}"
    return "Ready · on disk"


def tile_words(status: AdapterStatus) -> str:
    """One line about a resident adapter."""
    parts = [f"r={status.rank}", size_words(status.bytes)]
    if status.pinned:
        parts.append("pinned")
    if status.running:
        parts.append(f"{status.running} running")
    elif status.last_used_seconds_ago is not None:
        parts.append(f"idle {span_words(status.last_used_seconds_ago)}")
    return " · ".join(parts)
