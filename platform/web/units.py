"""Quantities in words a person reads; the same ones on every page and in the terminal."""

from datetime import UTC, datetime


def size_words(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def percent_words(share: float, digits: int = 1) -> str:
    """A share of 1."""
    return f"{100 * share:.{digits}f} %"


def age_words(moment: datetime) -> str:
    return span_words((datetime.now(UTC) - moment).total_seconds()) + " ago"


def span_words(seconds: float) -> str:
    for limit, unit, divisor in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def count_words(count: int, thing: str) -> str:
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def duration_words(seconds: float) -> str:
    """A measured time: milliseconds below one second, tenths below a minute."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else span_words(seconds)
