"""Which logins the audit log hears of: all, up to so many an hour for each tenant, so that nobody floods the log."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GOOD_AN_HOUR: Final = 120
FAILED_AN_HOUR: Final = 20
HOUR: Final = 3600.0


@dataclass(slots=True)
class Bucket:
    """Rows that may be written now, and how many logins were left out since the last one."""

    left: float
    at: float
    left_out: int = 0


class LoginNotes:
    """For any thread. Of tenants that there are, and of "" for all others: their number is bounded."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, bool], Bucket] = {}

    def detail_of(self, tenant: str, good: bool, address: str) -> dict[str, object] | None:
        """What the row of a login says; None: it is not to be written."""
        most = GOOD_AN_HOUR if good else FAILED_AN_HOUR
        with self._lock:
            now = self._clock()
            bucket = self._buckets.setdefault((tenant, good), Bucket(most, now))
            bucket.left, bucket.at = min(most, bucket.left + most * (now - bucket.at) / HOUR), now
            if bucket.left < 1:
                bucket.left_out += 1
                return None
            left_out, bucket.left_out = bucket.left_out, 0
            bucket.left -= 1
        return {"address": address} | ({"more_before": left_out} if left_out else {})
