"""Histogram: how often which size came, in the buckets that metrics show."""

from bisect import bisect_left
from collections.abc import Sequence

from .status import AdapterStatus, Distribution

STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
LOAD_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        return Distribution(bounds=self._bounds, counts=list(self._counts), total=self._total)


class LoadTimes:
    """Durations of adapter loads, seen at heartbeats: of several between two, all count as long as the last."""

    def __init__(self) -> None:
        self._histogram = Histogram(LOAD_SECONDS)
        self._loads: dict[str, int] = {}

    def note(self, adapters: Sequence[AdapterStatus]) -> Distribution:
        """All loads so far, those included that `adapters` tell of now."""
        for adapter in adapters:
            for _ in range(adapter.loads - self._loads.get(adapter.digest, 0)):
                assert adapter.load_seconds is not None
                self._histogram.observe(adapter.load_seconds)
        self._loads = {adapter.digest: adapter.loads for adapter in adapters}
        return self._histogram.distribution()
