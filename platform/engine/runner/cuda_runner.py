"""CudaRunner: a step's plan in, drawn tokens out, on a CUDA device that computes one step while the next is planned."""

import time
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from ..attention.cuda import CudaBackend
from ..batch import Batch
from ..delta_net.backend import DeltaNetBackend
from ..device.device_time import DeviceTime
from ..device.host_transfer import Arrival, HostTransfer
from ..kernels.cuda.placeholders import resolve
from ..model.decoder import Decoder
from ..sampling.cuda.sampled import PendingLogprobs, PendingSample
from ..sampling.cuda.sampler import CudaSampler, RowNeeds
from ..sampling.state import Sampled
from ..scheduler.plan import Scheduled, StepPlan, StepResult
from .clipping import count_clipped
from .graph_pool import GraphKey, GraphPool
from .pooled import pool_hidden
from .step_inputs import StepInputs, StepShape
from .step_layout import AdapterSlots, judged

MOST_JUDGED: Final = 256
"""Prompt tokens whose logits are in memory at a time: as many as make their product cost more than reading the head."""


@dataclass(slots=True)
class CudaRunner:
    """Nothing in `submit` waits for the device. All that a step reads or leaves there has a place that never changes,
    so that steps are captured as graphs. Launched one kernel after the other are those that tell log-probabilities of
    prompts or make vectors: StepShape.is_fixed."""

    decoder: Decoder
    cache: CudaBackend
    adapters: AdapterSlots
    sampler: CudaSampler
    inputs: StepInputs
    graphs: GraphPool
    host_transfer: HostTransfer
    device_time: DeviceTime
    clipped: torch.Tensor
    """[1, tokens] int64: Batch.clipped of the last step, summed over the layers."""
    states: DeltaNetBackend | None = None
    """Of a model with recurrent layers."""
    depth: int = 2

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> "CudaHandle":
        started = time.perf_counter()
        if plan.copies:
            self.cache.copy_blocks(plan.copies)
        if plan.state_copies:
            assert self.states is not None
            self.states.copy_states(plan.state_copies)
        asked = self.sampler.prepare(plan.sample_rows())
        shape = self.inputs.write(plan.scheduled, self.adapters, self.cache.is_uneven, asked.records)
        handle = (self._replay if shape.is_fixed else self._compute)(plan, shape, asked)
        handle.stale = shape.stale
        if self.cache.clips:
            handle.clipped = self.host_transfer.send(self.clipped[:, : shape.tokens])
        handle.seconds = time.perf_counter() - started
        return handle

    def _replay(self, plan: StepPlan, shape: StepShape, asked: RowNeeds) -> "CudaHandle":
        """Steps with prompts are captured with the launches of draws: beside a prompt they cost nothing."""
        cuts = self.cache.cuts(shape.tokens, shape.sequences, self.inputs.blocks, shape.uneven, shape.mixed)
        lora, draws = shape.lora, asked.draws or shape.mixed
        acting: tuple[bool, frozenset[str], bool, bool] = (False, frozenset(), False, False)
        if lora is not None:
            acting = lora.has_vectors, lora.changed, lora.own_logits, lora.on_experts
        sizes = shape.tokens, shape.sequences, shape.mixed, shape.lora_rounds
        with self.device_time.span():
            self.graphs.run(
                GraphKey(*sizes, *acting, cuts, draws, asked.logprobs),
                partial(self._launch, shape, draws, asked.logprobs),
            )
        sampled = self.sampler.fetch(asked.counts) if asked.counts else None
        return CudaHandle(self.device_time, plan.scheduled, sampled)

    def _launch(self, shape: StepShape, draws: bool, logprobs: bool) -> None:
        batch, x, residual = self._through_layers(shape)
        self.sampler.launch(self.decoder.end(x, residual, batch), draws=draws, logprobs=logprobs)

    def _compute(self, plan: StepPlan, shape: StepShape, asked: RowNeeds) -> "CudaHandle":
        """With log-probabilities of prompts, or vectors. The former come first, as they pass through where drawn tokens
        lie, and the parameters of their draws."""
        prompts: dict[int, PendingLogprobs] = {}
        with self.device_time.span():
            batch, x, residual = self._through_layers(shape)
            for part in judged(plan.scheduled, MOST_JUDGED):
                logits = self.decoder.end(x, residual, self.inputs.judged(shape, part.rows))
                told = self.sampler.prompt_logprobs(logits, part.token_ids, part.count)
                prompts.setdefault(part.index, PendingLogprobs([])).parts += told.parts
            pooled = {
                index: self.host_transfer.send(hidden)
                for index, hidden in pool_hidden(self.decoder, (x, residual), batch, plan.scheduled)
            }
            if prompts:
                self.sampler.upload(asked.records)
            sampled = self._draw(self.decoder.end(x, residual, batch), asked) if asked.counts else None
        return CudaHandle(self.device_time, plan.scheduled, sampled, prompts, pooled)

    def _draw(self, logits: torch.Tensor, asked: RowNeeds) -> PendingSample:
        self.sampler.launch(logits, draws=asked.draws, logprobs=asked.logprobs)
        return self.sampler.fetch(asked.counts)

    def _through_layers(self, shape: StepShape) -> tuple[Batch, torch.Tensor, torch.Tensor]:
        """The step, and what Decoder.end takes."""
        resolve(*self.inputs.placeholders(shape), self.sampler.token_ids)
        batch = self.inputs.batch(shape)
        x, residual = self.decoder.compute(batch, self.cache)
        if batch.clipped is not None:
            torch.sum(batch.clipped, 0, keepdim=True, out=self.clipped[:, : shape.tokens])
        return batch, x, residual


class CudaHandle:
    """A step on its way."""

    def __init__(
        self,
        device_time: DeviceTime,
        scheduled: list[Scheduled],
        sampled: PendingSample | None,
        prompts: dict[int, PendingLogprobs] | None = None,
        pooled: dict[int, Arrival] | None = None,
    ) -> None:
        self.clipped: Arrival | None = None
        self.stale = frozenset[int]()
        """As of StepResult."""
        self.seconds = 0.0
        """Of the host, for the launches."""
        self._device_time = device_time
        self._scheduled = scheduled
        self._sampled = sampled
        self._prompts = prompts or {}
        self._pooled = pooled or {}

    def result(self) -> StepResult:
        started = time.perf_counter()
        sampled = Sampled([], [], []) if self._sampled is None else self._sampled.wait()
        prompts = {index: pending.wait() for index, pending in self._prompts.items()}
        pooled = {index: arrival.wait().numpy() for index, arrival in self._pooled.items()}
        clipped = None if self.clipped is None else self.clipped.wait()
        seconds = self.seconds + time.perf_counter() - started
        clipping, unusable = count_clipped(clipped, self._scheduled)
        return StepResult(sampled, prompts, pooled, clipping, unusable, self.stale, seconds, self._device_time.take())
