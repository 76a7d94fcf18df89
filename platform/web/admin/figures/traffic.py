"""Traffic: what was served in each of the last five minutes' seconds, and the figures made of it."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from ...observability.request_log import FinishedRequest
from ...percentile import percentile

SECONDS: Final = 300
RATE_SECONDS: Final = 10
POINT_SECONDS: Final = 5
NONE: Final = "–"


@dataclass(frozen=True, slots=True)
class Second:
    requests: int = 0
    errors: int = 0
    tokens: int = 0
    first_tokens: tuple[float, ...] = ()


NOTHING: Final = Second()


class Traffic:
    """`tick` once a second. Counters that fall (the engine restarted) count as standing still."""

    def __init__(self, tenant: str | None = None) -> None:
        """Of one tenant, whose tokens are booked as its requests end; None: of all, as the engine counts them."""
        self._seconds: deque[Second] = deque([NOTHING] * SECONDS, maxlen=SECONDS)
        self._tenant = tenant
        self.until = 0.0
        self._tokens: int | None = None
        self.seen = False
        """Whether any request has ended since the start."""

    def tick(self, newest_first: Iterable[FinishedRequest], generated: int | None) -> None:
        """Book what ended since the last tick; `generated` is the engine's count of tokens, None while it is away."""
        new = list(takewhile(lambda request: request.at > self.until, newest_first))
        self.until = max([self.until, *(request.at for request in new)])
        ended = [request for request in new if self._tenant in (None, request.tenant)]
        second = Second(
            requests=len(ended),
            errors=sum(request.status == "error" for request in ended),
            tokens=self._made(generated) if self._tenant is None else sum(it.completion_tokens for it in ended),
            first_tokens=tuple(request.first_token for request in ended if request.first_token is not None),
        )
        self.seen = self.seen or bool(ended)
        self._seconds.append(NOTHING if second == NOTHING else second)

    def _made(self, generated: int | None) -> int:
        """Tokens since the last tick."""
        before, self._tokens = self._tokens, generated
        return 0 if before is None or generated is None else max(0, generated - before)

    def totals(self) -> tuple[int, int]:
        """Requests and errors in the last five minutes."""
        seconds = list(self._seconds)
        return sum(second.requests for second in seconds), sum(second.errors for second in seconds)

    def figures(self) -> dict[str, Any]:
        """The latest figures, and their history as one point for each five seconds, oldest first."""
        seconds = list(self._seconds)
        minute, latest = seconds[-60:], seconds[-RATE_SECONDS:]
        firsts = [first for second in seconds for first in second.first_tokens]
        return {
            "seen": self.seen,
            "requests_per_minute": sum(second.requests for second in minute),
            "errors_per_minute": sum(second.errors for second in minute),
            "tokens_per_second": _rounded(sum(second.tokens for second in latest) / RATE_SECONDS),
            "first_token_ms": _rounded(1000 * percentile(firsts, 0.95)) if firsts else NONE,
            "history": _history([seconds[at : at + POINT_SECONDS] for at in range(0, SECONDS, POINT_SECONDS)]),
        }


def _history(points: Sequence[Sequence[Second]]) -> dict[str, list[float | None]]:
    firsts = [[first for second in point for first in second.first_tokens] for point in points]
    return {
        "requests_per_minute": [sum(second.requests for second in point) for point in points],
        "errors_per_minute": [sum(second.errors for second in point) for point in points],
        "tokens_per_second": [sum(second.tokens for second in point) / POINT_SECONDS for point in points],
        "first_token_ms": [round(1000 * percentile(values, 0.95), 1) if values else None for values in firsts],
    }


def _rounded(value: float) -> str:
    """Three digits are enough for a figure that moves."""
    return f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"
