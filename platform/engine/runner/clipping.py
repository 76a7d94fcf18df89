"""How much static scales of the KV cache clip, for each adapter: counted in a step, summed until the heartbeat."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np

from ..scheduler.plan import Scheduled
from ..status import AdapterStatus, Clipping

BASE: Final = ""
"""In place of a digest: no adapter acted on the token."""


def count_clipped(clipped: Any, scheduled: Sequence[Scheduled]) -> tuple[dict[str, Clipping], frozenset[int]]:
    """Batch.clipped [L, T] of a step -> by digest what was clipped, and the indices of the sequences of which a number
    was not finite. A token counts for each adapter that acts on it, else for the base."""
    if clipped is None:
        return {}, frozenset()
    numbers = clipped.sum(dim=0).numpy()
    values, tokens = _running_sums(np.maximum(numbers, 0)), _running_sums(numbers > 0)
    bounds = _running_sums([item.count for item in scheduled])
    found: dict[str, Clipping] = {}
    for item, begin in zip(scheduled, bounds, strict=False):
        for digest, start, end in _acting(item):
            first, last = start - item.start + begin, end - item.start + begin
            _add(found, digest, last - first, tokens[last] - tokens[first], values[last] - values[first])
    unusable = (index for index, (begin, end) in enumerate(pairwise(bounds)) if (numbers[begin:end] < 0).any())
    return found, frozenset(unusable)


class ClippingTotals:
    """Since the engine's start, of the base and of the adapters that are registered."""

    def __init__(self) -> None:
        self._totals: dict[str, Clipping] = {}

    def add(self, found: Mapping[str, Clipping]) -> None:
        for digest, more in found.items():
            _add(self._totals, digest, more.tokens, more.clipped_tokens, more.clipped_values)

    def tell(self, adapters: Sequence[AdapterStatus]) -> Clipping | None:
        """Fill in what each adapter has come to, forget those that are no more, and answer the base's."""
        known = {BASE, *(adapter.digest for adapter in adapters)}
        self._totals = {digest: total for digest, total in self._totals.items() if digest in known}
        for adapter in adapters:
            adapter.clipping = self._copy(adapter.digest)
        return self._copy(BASE)

    def _copy(self, digest: str) -> Clipping | None:
        total = self._totals.get(digest)
        return None if total is None else msgspec.structs.replace(total)


def _acting(item: Scheduled) -> list[tuple[str, int, int]]:
    """(digest, first, last + 1): the positions of this step that each adapter acts on, and the base alone."""
    request, end = item.sequence.request, item.start + item.count
    starts = [min(max(start, item.start), end) for start in request.starts]
    spans = [(ref.digest, start, end) for ref, start in zip(request.adapters, starts, strict=True)]
    return [span for span in [*spans, (BASE, item.start, min(starts, default=end))] if span[1] < span[2]]


def _running_sums(numbers: Any) -> list[int]:
    """One more than `numbers`: [0, a, a + b, ...]."""
    return [0, *np.cumsum(numbers).tolist()]


def _add(totals: dict[str, Clipping], digest: str, tokens: int, clipped_tokens: int, clipped_values: int) -> None:
    total = totals.setdefault(digest, Clipping())
    total.tokens += tokens
    total.clipped_tokens += clipped_tokens
    total.clipped_values += clipped_values
