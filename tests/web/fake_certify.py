"""FakeCertify: keeps the contract of engine/certify/child.py: certify, without a model."""

import asyncio
from dataclasses import replace
from pathlib import Path

import loraplex
from loraplex.engine.certify.certificate import Certificate, CertifyJob, Coverage, Figures, prompts_digest
from loraplex.engine.certify.child import OnProgress
from loraplex.engine.certify.prompts import generated_prompts
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.identity.digest import model_digest
from loraplex.engine.model.served import kv_cache_words, positions_words, quantization_words

from .fake_engine import ARITHMETIC, RUNTIME


class FakeCertify:
    """`refusal`: why it cannot. `fault`: what it dies of. `held`: it stays half done until this is set."""

    def __init__(self) -> None:
        self.jobs: list[CertifyJob] = []
        self.timeouts: list[float | None] = []
        self.ended = 0
        self.agreement = 0.985
        self.refusal: str | None = None
        self.fault: Exception | None = None
        self.held: asyncio.Event | None = None

    async def __call__(
        self, job: CertifyJob, on_progress: OnProgress, timeout_seconds: float | None = None
    ) -> Certificate:
        self.jobs.append(job)
        self.timeouts.append(timeout_seconds)
        try:
            on_progress(0.42, "quantized weights")
            if self.held is not None:
                await self.held.wait()
            if self.refusal is not None:
                raise ValueError(self.refusal)
            if self.fault is not None:
                raise self.fault
            return self._certificate(job)
        finally:
            self.ended += 1

    def _certificate(self, job: CertifyJob) -> Certificate:
        model, prompts = ModelConfig.from_folder(job.engine.model), job.prompts or generated_prompts()
        coverage = Coverage(
            base=model_digest(Path(job.engine.model)),
            reference=model_digest(Path(job.reference or job.engine.model)),
            quantization=quantization_words(model, job.engine),
            kv_cache_dtype=kv_cache_words(model, job.engine),
            positions=positions_words(model, job.engine),
            arithmetic=ARITHMETIC,
            runtime=RUNTIME,
            adapter=job.adapter_digest,
            prompts=prompts_digest(prompts),
            version=loraplex.__version__,
        )
        weights = Figures(0.99, 0.00042, 0.31, 3.251, 0.0212)
        return Certificate(
            coverage=coverage,
            num_prompts=len(prompts),
            num_tokens=512,
            reference_perplexity=3.2298,
            weights=weights,
            kv_cache=replace(weights, top1_agreement=0.9951),
            both=replace(weights, top1_agreement=self.agreement),
            seconds=14.2,
        )
