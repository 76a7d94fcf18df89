"""CudaRunner: a step's plan in, drawn tokens out, on a CUDA device that computes one step while the next is planned."""

import time
from dataclasses import dataclass
from functools import partial

import torch

from .attention.cuda import CudaAttention
from .clipping import count_clipped
from .cuda_sampled import PendingLogprobs, PendingSample
from .cuda_sampler import CudaSampler
from .graph_pool import GraphKey, GraphPool
from .kernels.cuda.placeholders import resolve
from .model.decoder import Decoder
from .outbox import Arrival, Outbox
from .plan import Scheduled, StepPlan, StepResult
from .sampling_state import Sampled
from .step_inputs import StepInputs, StepShape
from .step_layout import AdapterSlots, prompt_targets


@dataclass(slots=True)
class CudaRunner:
    """Nothing in `submit` waits for the device. All that a step reads or leaves there has a place that never changes,
    so that decodes are captured as graphs; steps with prompts in them are launched one kernel after the other."""

    decoder: Decoder
    cache: CudaAttention
    adapters: AdapterSlots
    sampler: CudaSampler
    inputs: StepInputs
    graphs: GraphPool
    outbox: Outbox
    clipped: torch.Tensor
    """[1, tokens] int64: Batch.clipped of the last step, summed over the layers."""
    depth: int = 2

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> "CudaHandle":
        started = time.perf_counter()
        if plan.copies:
            self.cache.copy_blocks(plan.copies)
        shape = self.inputs.write(plan.scheduled, self.adapters)
        handle = self._decode(plan, shape) if shape.is_decode else self._compute(plan, shape)
        if self.cache.clips:
            handle.clipped = self.outbox.send(self.clipped[:, : shape.tokens])
        handle.seconds = time.perf_counter() - started
        return handle

    def _decode(self, plan: StepPlan, shape: StepShape) -> "CudaHandle":
        rows = plan.sample_rows()
        draws, logprobs = self.sampler.prepare(rows)
        splits = self.cache.count_splits(shape.tokens, shape.sequences, self.inputs.blocks)
        lora = shape.lora
        acting = (False, frozenset[str](), False) if lora is None else (lora.has_vectors, lora.changed, lora.own_logits)
        key = GraphKey(shape.tokens, shape.sequences, shape.lora_rounds, *acting, splits, draws, logprobs)
        self.graphs.run(key, partial(self._launch, shape, draws, logprobs))
        return CudaHandle(plan.scheduled, self.sampler.fetch([row.logprobs for row in rows]))

    def _launch(self, shape: StepShape, draws: bool, logprobs: bool) -> None:
        self.sampler.launch(self._forward(shape), draws=draws, logprobs=logprobs)

    def _compute(self, plan: StepPlan, shape: StepShape) -> "CudaHandle":
        """With prompts in it. Their log-probabilities come first, as they pass through where drawn tokens lie."""
        logits, rows = self._forward(shape), plan.sample_rows()
        prompts = self._prompt_logprobs(plan.scheduled, logits[len(rows) :])
        sampled = self.sampler.sample(logits[: len(rows)], rows) if rows else None
        return CudaHandle(plan.scheduled, sampled, prompts)

    def _forward(self, shape: StepShape) -> torch.Tensor:
        resolve(*self.inputs.placeholders(shape), self.sampler.token_ids)
        batch = self.inputs.batch(shape)
        logits = self.decoder.forward(batch, self.cache)
        if batch.clipped is not None:
            torch.sum(batch.clipped, 0, keepdim=True, out=self.clipped[:, : shape.tokens])
        return logits

    def _prompt_logprobs(self, scheduled: list[Scheduled], logits: torch.Tensor) -> dict[int, PendingLogprobs]:
        return {
            index: self.sampler.prompt_logprobs(rows, tokens, count)
            for index, rows, tokens, count in prompt_targets(scheduled, logits)
        }


class CudaHandle:
    """A step on its way."""

    def __init__(
        self,
        scheduled: list[Scheduled],
        sampled: PendingSample | None,
        prompts: dict[int, PendingLogprobs] | None = None,
    ) -> None:
        self.clipped: Arrival | None = None
        self.seconds = 0.0
        """Of the host, for the launches."""
        self._scheduled = scheduled
        self._sampled = sampled
        self._prompts = prompts or {}

    def result(self) -> StepResult:
        started = time.perf_counter()
        sampled = Sampled([], [], []) if self._sampled is None else self._sampled.wait()
        prompts = {index: pending.wait() for index, pending in self._prompts.items()}
        clipped = None if self.clipped is None else self.clipped.wait()
        seconds = self.seconds + time.perf_counter() - started
        clipping, unusable = count_clipped(clipped, self._scheduled)
        return StepResult(sampled, prompts, clipping, unusable, seconds)
