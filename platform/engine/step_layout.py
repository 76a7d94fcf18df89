"""From a plan's sequences to the arrays of a step, on any device.

Shapes: T new tokens, S sequences, R sampled rows, P blocks of the longest block table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from loraplex.lora.batch import LoraBatch, PageTable

from .plan import Scheduled

UNKNOWN: Final = 0
"""In the place of a token that only the device knows."""


class AdapterSlots(Protocol):
    """What the runner needs of the adapter pool."""

    @property
    def table(self) -> PageTable: ...

    def slot_of(self, digest: str) -> int:
        """Slot of an adapter that a scheduled sequence holds."""


def token_ids(scheduled: list[Scheduled]) -> np.ndarray:
    """[T] int64, with UNKNOWN for placeholders."""
    ids: list[int] = []
    for item in scheduled:
        known = item.sequence.token_ids[item.start : item.start + item.count]
        ids += known
        if len(known) < item.count:
            ids.append(UNKNOWN)
    return np.array(ids, np.int64)


def block_tables(scheduled: list[Scheduled]) -> np.ndarray:
    """[S, P] int32."""
    width = max(len(item.sequence.blocks) for item in scheduled)
    tables = np.zeros((len(scheduled), width), np.int32)
    for row, item in zip(tables, scheduled, strict=True):
        row[: len(item.sequence.blocks)] = item.sequence.blocks
    return tables


def wanted_rows(scheduled: list[Scheduled], query_starts: np.ndarray) -> np.ndarray:
    """Rows of the batch whose logits are needed: first those to draw from, then those of the prompt targets."""
    drawn = [last - 1 for item, last in zip(scheduled, query_starts[1:].tolist(), strict=True) if item.sample]
    judged = [
        first - item.start + target - 1
        for item, first in zip(scheduled, query_starts.tolist(), strict=False)
        for target in item.prompt_targets
    ]
    return np.array(drawn + judged, np.int64)


@dataclass(frozen=True, slots=True)
class Judged:
    """Prompt targets of one sequence."""

    index: int
    """Of its item in what is scheduled."""
    rows: slice
    """Of those that `wanted_rows` tells."""
    token_ids: list[int]
    count: int
    """How many of the likeliest tokens are to be told."""


def judged(scheduled: list[Scheduled], most: int | None = None) -> Iterator[Judged]:
    """All prompt targets, item after item, in their order; up to `most` at a time."""
    row = sum(item.sample for item in scheduled)
    for index, item in enumerate(scheduled):
        targets, count = item.prompt_targets, item.sequence.row.params.prompt_logprobs or 0
        for first in range(targets.start, targets.stop, most or max(len(targets), 1)):
            tokens = item.sequence.token_ids[first : targets.stop][:most]
            yield Judged(index, slice(row, row + len(tokens)), tokens, count)
            row += len(tokens)


def adapter_batch(
    scheduled: list[Scheduled], adapters: AdapterSlots, owners: np.ndarray, positions: np.ndarray
) -> LoraBatch | None:
    """Which adapters act on each token; `owners` and `positions` [T] as `lay_out` gives them."""
    requests = [item.sequence.request for item in scheduled]
    shape = len(requests), max(len(request.adapters) for request in requests)
    if not shape[1]:
        return None
    slots, scales, starts = np.full(shape, -1, np.int32), np.ones(shape, np.float32), np.zeros(shape, np.int64)
    for row, request in enumerate(requests):
        for place, (ref, start) in enumerate(zip(request.adapters, request.starts, strict=True)):
            slots[row, place], scales[row, place] = adapters.slot_of(ref.digest), ref.scale
            if start:
                starts[row, place] = start
    token_slots = slots[owners]
    if starts.any():
        token_slots[positions[:, None] < starts[owners]] = -1
    return LoraBatch.build(adapters.table, torch.from_numpy(token_slots), torch.from_numpy(scales[owners]))
