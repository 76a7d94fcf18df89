"""The value that at least a share of all values do not exceed."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank: rounded down, the p95 of two values would be the smaller one."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
