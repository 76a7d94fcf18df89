"""ModelRunner: a step's plan in, drawn tokens out. The only part of the loop that touches tensors."""

import time

import numpy as np
import torch

from ..attention.backend import AttentionBackend
from ..batch import Batch, StateSlots
from ..delta_net.backend import DeltaNetBackend
from ..kernels.token_layout import lay_out
from ..model.decoder import Decoder
from ..protocol import TokenLogprob
from ..sampling.sampler import Sampled, Sampler
from ..scheduler.plan import Scheduled, StepPlan, StepResult
from .clipping import count_clipped
from .pooled import pool_hidden
from .step_layout import (
    AdapterSlots,
    adapter_batch,
    block_tables,
    judged,
    list_segments,
    list_tokens,
    place_tokens,
    state_slots,
    wanted_rows,
)
from .steps import Ended


class ModelRunner:
    """On a CPU: a step is over when it has been submitted."""

    depth = 1

    def __init__(
        self,
        decoder: Decoder,
        cache: AttentionBackend,
        adapters: AdapterSlots,
        sampler: Sampler,
        block_size: int,
        states: DeltaNetBackend | None = None,
    ) -> None:
        """`states`: of a model with recurrent layers."""
        self._decoder = decoder
        self._cache = cache
        self._adapters = adapters
        self._sampler = sampler
        self._block_size = block_size
        self._states = states

    def submit(self, plan: StepPlan) -> Ended:
        return Ended(self._run(plan))

    @torch.inference_mode()
    def _run(self, plan: StepPlan) -> StepResult:
        if plan.copies:
            self._cache.copy_blocks(plan.copies)
        if plan.state_copies:
            assert self._states is not None
            self._states.copy_states(plan.state_copies)
        batch, stale = self._batch(plan.scheduled)
        started = time.perf_counter()
        logits, ends = self._decoder.forward_with_ends(batch, self._cache)
        rows = plan.sample_rows()
        sampled = self._sampler.sample(logits[: len(rows)], rows) if rows else Sampled([], [], [])
        prompt_logprobs = self._prompt_logprobs(plan.scheduled, logits)
        pooled = {index: hidden.numpy() for index, hidden in pool_hidden(self._decoder, ends, batch, plan.scheduled)}
        seconds = time.perf_counter() - started
        clipping, unusable = count_clipped(batch.clipped, plan.scheduled)
        return StepResult(sampled, prompt_logprobs, pooled, clipping, unusable, stale, seconds)

    def _batch(self, scheduled: list[Scheduled]) -> tuple[Batch, frozenset[int]]:
        """And StepResult.stale."""
        tables = block_tables(scheduled)
        layout = place_tokens(scheduled, tables, self._block_size, lay_out)
        owners, positions, slots, query_starts, context_lengths = layout
        token_ids, _ = list_tokens(scheduled, {})
        segments = list_segments(scheduled)
        lora, stale = adapter_batch(scheduled, self._adapters, owners, positions)
        batch = Batch(
            token_ids=torch.from_numpy(np.array(token_ids, np.int64)),
            positions=torch.from_numpy(positions),
            slot_mapping=torch.from_numpy(slots),
            query_starts=torch.from_numpy(query_starts),
            context_lengths=torch.from_numpy(context_lengths),
            block_tables=torch.from_numpy(tables),
            sample_rows=torch.from_numpy(wanted_rows(scheduled, query_starts)),
            lora=lora,
            segments=None if segments is None else torch.from_numpy(segments),
            states=None if self._states is None else self._state_slots(scheduled, query_starts),
        )
        return batch, stale

    def _state_slots(self, scheduled: list[Scheduled], query_starts: np.ndarray) -> StateSlots:
        return StateSlots(*map(torch.from_numpy, state_slots(scheduled, query_starts)))

    def _prompt_logprobs(self, scheduled: list[Scheduled], logits: torch.Tensor) -> dict[int, list[TokenLogprob]]:
        return {
            part.index: self._sampler.prompt_logprobs(logits[part.rows], part.token_ids, part.count)
            for part in judged(scheduled)
        }
