"""From a plan's sequences to the arrays of a step, on any device.

Shapes: T new tokens, S sequences, R sampled rows, P blocks of the longest block table.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from loraplex.lora.apply.batch import NO_SLOT, LoraBatch, PageTable
from loraplex.lora.residency.epochs import StaleError

from ..scheduler.plan import Scheduled
from ..scheduler.sequence import Sequence
from .token_layout import Ints

logger = logging.getLogger(__name__)

UNKNOWN: Final = 0
"""In the place of a token that only the device knows."""
KNOWN: Final = -1
"""The source of a token that is among the ids."""
Layout = tuple[Ints, Ints, Ints, Ints, Ints]
"""owners, positions, slots, query_starts, context_lengths, as `kernels/token_layout.py` has them."""


class AdapterSlots(Protocol):
    """What the runner needs of the adapter pool."""

    @property
    def table(self) -> PageTable: ...

    @property
    def newest_epoch(self) -> int:
        """Of all slots: it grows whenever one is given away or taken back."""

    def slot_of(self, digest: str, epoch: int) -> int:
        """Slot of an adapter that a scheduled sequence holds since it took it with this epoch, which no other has.
        StaleError where the slot is not its own any more."""


def place_tokens(
    scheduled: list[Scheduled], tables: Ints, block_size: int, lay_out: Callable[[Ints, Ints, Ints, int], Layout]
) -> Layout:
    """`lay_out`: of the device, by `tables` [S, P]."""
    counts = np.array([item.count for item in scheduled])
    starts = np.array([item.start for item in scheduled])
    return lay_out(counts, starts, tables, block_size)


def list_tokens(scheduled: list[Scheduled], drawn: Mapping[Sequence, int]) -> tuple[list[int], list[int]]:
    """[T] ids, with UNKNOWN for placeholders; and for those the row in which the step before drew them, else KNOWN.
    drawn: those rows. Where that step failed, the request ends with it and any row will do."""
    ids, sources = list[int](), list[int]()
    for item in scheduled:
        known = item.sequence.token_ids[item.start : item.start + item.count]
        ids += known
        sources += [KNOWN] * len(known)
        if len(known) < item.count:
            ids.append(UNKNOWN)
            sources.append(drawn.get(item.sequence, 0))
    return ids, sources


def block_tables(scheduled: list[Scheduled]) -> np.ndarray:
    """[S, P] int32."""
    width = max(len(item.sequence.blocks) for item in scheduled)
    tables = np.zeros((len(scheduled), width), np.int32)
    for row, item in zip(tables, scheduled, strict=True):
        row[: len(item.sequence.blocks)] = item.sequence.blocks
    return tables


def state_slots(scheduled: list[Scheduled], query_starts: np.ndarray) -> tuple[Ints, Ints, Ints, Ints]:
    """The fields of StateSlots, of a model with recurrent layers, whose sequences each hold a state."""
    kept = [
        (query_starts[index] + it.position - item.start - 1, it.slot)
        for index, item in enumerate(scheduled)
        for it in item.kept
    ]
    counts = [0, *[len(item.kept) for item in scheduled]]
    tokens, slots = np.array(kept, np.int32).reshape(-1, 2).T.copy()
    own = np.array([item.sequence.state for item in scheduled], np.int32)
    return own, np.cumsum(counts, dtype=np.int32), tokens, slots


def list_segments(scheduled: list[Scheduled]) -> np.ndarray | None:
    """[T] int64, as of Batch.segments."""
    seconds = [item.sequence.request.message.second_text for item in scheduled]
    if all(second is None for second in seconds):
        return None
    segments = np.zeros(sum(item.count for item in scheduled), np.int64)
    first = 0
    for item, second in zip(scheduled, seconds, strict=True):
        if second is not None:
            segments[first + min(item.count, max(0, second - item.start)) : first + item.count] = 1
        first += item.count
    return segments


def wanted_rows(scheduled: list[Scheduled], query_starts: np.ndarray) -> np.ndarray:
    """Rows of the batch whose logits are needed: first those to draw from, then those of the prompt targets."""
    drawn = query_starts[1:][[item.sample for item in scheduled]] - 1
    judged = [
        query_starts[index] - item.start + target - 1
        for index, item in enumerate(scheduled)
        if item.sequence.needs_prompt_logprobs
        for target in item.prompt_targets
    ]
    return np.array([*drawn, *judged], np.int64) if judged else drawn.astype(np.int64)


@dataclass(frozen=True, slots=True)
class PromptTargets:
    """Prompt targets of one sequence."""

    index: int
    """Of its item in what is scheduled."""
    rows: slice
    """Of those that `wanted_rows` tells."""
    token_ids: list[int]
    count: int
    """How many of the likeliest tokens are to be told."""


def judged(scheduled: list[Scheduled], most: int | None = None) -> Iterator[PromptTargets]:
    """All prompt targets, item after item, in their order; up to `most` at a time."""
    row = sum(item.sample for item in scheduled)
    for index, item in enumerate(scheduled):
        targets, count = item.prompt_targets, item.sequence.row.params.prompt_logprobs or 0
        for first in range(targets.start, targets.stop, most or max(len(targets), 1)):
            tokens = item.sequence.token_ids[first : targets.stop][:most]
            yield PromptTargets(index, slice(row, row + len(tokens)), tokens, count)
            row += len(tokens)


def adapter_batch(
    scheduled: list[Scheduled], adapters: AdapterSlots, owners: np.ndarray, positions: np.ndarray
) -> tuple[LoraBatch | None, frozenset[int]]:
    """Which adapters act on each token; `owners` and `positions` [T] as in `Layout`. And the indices into
    `scheduled` of those whose adapter has lost its slot: what the step computes for them is worth nothing."""
    requests = [item.sequence.request for item in scheduled]
    shape = len(requests), max(len(request.adapters) for request in requests)
    if not shape[1]:
        return None, frozenset()
    stale, found = set[int](), dict[int, int]()
    acting: list[tuple[int, int, int, float, int]] = []
    for row, request in enumerate(requests):
        for place, epoch in enumerate(request.epochs):
            ref = request.adapters[place]
            slot = found.get(epoch)
            if slot is None:
                slot = found[epoch] = _slot_of(adapters, ref.digest, epoch)
            if slot == NO_SLOT:
                stale.add(row)
            acting.append((row, place, slot, ref.scale, request.starts[place]))
    rows, places, *told = map(np.array, zip(*acting, strict=True))
    slots, scales, starts = np.full(shape, NO_SLOT, np.int32), np.ones(shape, np.float32), np.zeros(shape, np.int64)
    slots[rows, places], scales[rows, places], starts[rows, places] = told
    token_slots = slots[owners]
    if starts.any():
        token_slots[positions[:, None] < starts[owners]] = NO_SLOT
    batch = LoraBatch.build(adapters.table, torch.from_numpy(token_slots), torch.from_numpy(scales[owners]))
    return batch, frozenset(stale)


def _slot_of(adapters: AdapterSlots, digest: str, epoch: int) -> int:
    """NO_SLOT where it lost it."""
    try:
        return adapters.slot_of(digest, epoch)
    except StaleError as error:
        logger.error("integrity: %s", error)
        return NO_SLOT
