"""The value below which a share of all values lies."""

from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]
