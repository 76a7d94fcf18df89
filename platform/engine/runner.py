"""ModelRunner: a step's plan in, drawn tokens out. The only part of the loop that touches tensors."""

import time
from typing import Protocol

import numpy as np
import torch

from loraplex.lora.batch import LoraBatch, PageTable

from .attention.backend import AttentionBackend
from .batch import Batch
from .clipping import count_clipped
from .kernels.token_layout import lay_out
from .model.decoder import Decoder
from .plan import Scheduled, StepPlan, StepResult
from .protocol import TokenLogprob
from .sampler import Sampled, Sampler


class AdapterSlots(Protocol):
    """What the runner needs of the adapter pool."""

    @property
    def table(self) -> PageTable: ...

    def slot_of(self, digest: str) -> int:
        """Slot of an adapter that a scheduled sequence holds."""


class ModelRunner:
    def __init__(
        self, decoder: Decoder, cache: AttentionBackend, adapters: AdapterSlots, sampler: Sampler, block_size: int
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._adapters = adapters
        self._sampler = sampler
        self._block_size = block_size

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Copy blocks, compute the scheduled tokens, draw where the plan asks for it."""
        if plan.copies:
            self._cache.copy_blocks(plan.copies)
        batch = self._batch(plan.scheduled)
        started = time.perf_counter()
        logits = self._decoder.forward(batch, self._cache)
        rows = plan.sample_rows()
        sampled = self._sampler.sample(logits[: len(rows)], rows) if rows else Sampled([], [], [])
        prompt_logprobs = self._prompt_logprobs(plan.scheduled, logits[len(rows) :])
        seconds = time.perf_counter() - started
        clipping, unusable = count_clipped(batch.clipped, plan.scheduled)
        return StepResult(sampled, prompt_logprobs, clipping, unusable, seconds)

    def _batch(self, scheduled: list[Scheduled]) -> Batch:
        counts = np.array([item.count for item in scheduled])
        starts = np.array([item.start for item in scheduled])
        tables = _block_tables(scheduled)
        owners, positions, slots, query_starts, context_lengths = lay_out(counts, starts, tables, self._block_size)
        return Batch(
            token_ids=torch.from_numpy(_token_ids(scheduled)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(slots),
            query_starts=torch.from_numpy(query_starts),
            context_lengths=torch.from_numpy(context_lengths),
            block_tables=torch.from_numpy(tables),
            sample_rows=torch.from_numpy(_wanted_rows(scheduled, query_starts)),
            lora=self._lora(scheduled, owners, positions),
        )

    def _lora(self, scheduled: list[Scheduled], owners: np.ndarray, positions: np.ndarray) -> LoraBatch | None:
        requests = [item.sequence.request for item in scheduled]
        shape = len(requests), max(len(request.adapters) for request in requests)
        if not shape[1]:
            return None
        slots, scales, starts = np.full(shape, -1, np.int32), np.ones(shape, np.float32), np.zeros(shape, np.int64)
        for row, request in enumerate(requests):
            for place, (ref, start) in enumerate(zip(request.adapters, request.starts, strict=True)):
                slots[row, place], scales[row, place] = self._adapters.slot_of(ref.digest), ref.scale
                if start:
                    starts[row, place] = start
        token_slots = slots[owners]
        if starts.any():
            token_slots[positions[:, None] < starts[owners]] = -1
        return LoraBatch.build(self._adapters.table, torch.from_numpy(token_slots), torch.from_numpy(scales[owners]))

    def _prompt_logprobs(self, scheduled: list[Scheduled], logits: torch.Tensor) -> dict[int, list[TokenLogprob]]:
        """`logits` of all prompt targets, item after item."""
        found: dict[int, list[TokenLogprob]] = {}
        for index, item in enumerate(scheduled):
            targets = item.prompt_targets
            if targets:
                token_ids = item.sequence.token_ids[targets.start : targets.stop]
                count = item.sequence.row.params.prompt_logprobs or 0
                found[index] = self._sampler.prompt_logprobs(logits[: len(targets)], token_ids, count)
                logits = logits[len(targets) :]
        return found


def _token_ids(scheduled: list[Scheduled]) -> np.ndarray:
    ids: list[int] = []
    for item in scheduled:
        ids += item.sequence.token_ids[item.start : item.start + item.count]
    return np.array(ids, np.int64)


def _block_tables(scheduled: list[Scheduled]) -> np.ndarray:
    width = max(len(item.sequence.blocks) for item in scheduled)
    tables = np.zeros((len(scheduled), width), np.int32)
    for row, item in zip(tables, scheduled, strict=True):
        row[: len(item.sequence.blocks)] = item.sequence.blocks
    return tables


def _wanted_rows(scheduled: list[Scheduled], query_starts: np.ndarray) -> np.ndarray:
    """Rows of the batch whose logits are needed: first those to draw from, then those of the prompt targets."""
    drawn = [last - 1 for item, last in zip(scheduled, query_starts[1:].tolist(), strict=True) if item.sample]
    judged = [
        first - item.start + target - 1
        for item, first in zip(scheduled, query_starts.tolist(), strict=False)
        for target in item.prompt_targets
    ]
    return np.array(drawn + judged, np.int64)
