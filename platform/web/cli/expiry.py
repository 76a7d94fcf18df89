"""When a key ends, as people type it: a day, a moment, or how long from now."""

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

DURATION: Final = re.compile(r"([0-9]{1,6})([hdwy])", re.ASCII)
LENGTHS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1), "y": timedelta(days=365)}


def read_expiry(text: str, now: datetime) -> datetime:
    """`30d`, `2027-01-31` (as the day begins, UTC) or a moment in ISO 8601 with a zone. Raises ValueError."""
    moment = _moment(text.strip(), now)
    if moment is None:
        raise ValueError(
            f"--expires takes a duration such as 12h, 30d, 8w or 1y, a date such as 2027-01-31, or a time with "
            f"its zone such as 2027-01-31T18:00+01:00; got {text[:40]!a}."
        )
    if moment <= now:
        raise ValueError(f"--expires {text[:40]!a} is in the past. Give a later time.")
    return moment


def _moment(text: str, now: datetime) -> datetime | None:
    found = DURATION.fullmatch(text)
    try:
        if found is not None:
            return now + int(found[1]) * LENGTHS[found[2]]
        if len(text) == len("2027-01-31"):
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
