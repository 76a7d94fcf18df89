"""LoginThrottle: wrong passwords of the last minute. Who guesses waits, and keeps nobody else out."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final

from ..http.errors import ApiError

SECONDS: Final = 60.0
MOST_AT_AN_ACCOUNT: Final = 10
"""From one address, which people who share one rarely reach."""
MOST: Final = 100
"""At one account from all addresses, and from one address at all accounts: a check of a password takes a core for a
twentieth of a second."""
REMEMBERED: Final = 10_000
"""Pairs, accounts and addresses at most."""

Key = tuple[str, str]
"""Account and address; all of one where the other is empty."""


class LoginThrottle:
    """For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._wrong: OrderedDict[Key, deque[float]] = OrderedDict()
        """By the time of the last one."""

    def begin(self, account: str, address: str) -> float:
        """Counts as wrong before it is checked, so that many at once are no way around the limits: give what this
        returns to `take_back` if it was right. ApiError 429 until a minute after the first of too many."""
        with self._lock:
            self._refuse(account, address)
            now = self._clock()
            self._count(account, address, now)
        return now

    def check(self, account: str, address: str) -> None:
        """ApiError 429 as above. Counts nothing."""
        with self._lock:
            self._refuse(account, address)

    def take_back(self, account: str, address: str, began: float) -> None:
        """It was right, or could not be checked."""
        with self._lock:
            for key, _ in _limits(account, address):
                times = self._wrong.get(key)
                if times is not None and began in times:
                    times.remove(began)

    def _refuse(self, account: str, address: str) -> None:
        wait = max(self._wait(key, most) for key, most in _limits(account, address))
        if wait > 0:
            headers = {"retry-after": str(max(1, round(wait)))}
            raise ApiError(429, "Too many wrong passwords. Wait a minute, then try again.", headers=headers)

    def _count(self, account: str, address: str, now: float) -> None:
        for key, most in _limits(account, address):
            self._wrong.setdefault(key, deque(maxlen=most)).append(now)
            self._wrong.move_to_end(key)
        while len(self._wrong) > REMEMBERED:
            self._wrong.popitem(last=False)

    def _wait(self, key: Key, most: int) -> float:
        wrong = self._wrong.get(key)
        return 0.0 if wrong is None or len(wrong) < most else wrong[0] + SECONDS - self._clock()


def _limits(account: str, address: str) -> Iterator[tuple[Key, int]]:
    yield (account, address), MOST_AT_AN_ACCOUNT
    yield (account, ""), MOST
    yield ("", address), MOST
