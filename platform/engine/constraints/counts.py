"""Counts: what structured output did and cost, for the heartbeat."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ..histogram import Histogram
from ..status import StructuredStatus

COMPILE_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0)
MASK_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.1)

NOT_COMPILED: Final = "not_compiled"
TOO_SLOW: Final = "too_slow"
CRASHED: Final = "crashed"
CUT_SHORT: Final = "cut_short"
LOST: Final = "lost"


class Counts:
    def __init__(self, kinds: Iterable[str]) -> None:
        """`kinds` of constraints, all of which are told of from the start, as are all reasons."""
        self.requests = Counter(dict.fromkeys(kinds, 0))
        self.failed = Counter(dict.fromkeys((NOT_COMPILED, TOO_SLOW, CRASHED, CUT_SHORT, LOST), 0))
        self.compile_seconds = Histogram(COMPILE_BOUNDS)
        self.mask_seconds = Histogram(MASK_BOUNDS)
        self.late_masks = 0
        self.restarts = 0

    def tell(self) -> StructuredStatus:
        return StructuredStatus(
            requests=dict(self.requests),
            failed=dict(self.failed),
            compile_seconds=self.compile_seconds.distribution(),
            mask_seconds=self.mask_seconds.distribution(),
            late_masks=self.late_masks,
            restarts=self.restarts,
        )
