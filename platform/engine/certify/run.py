"""certify: four versions of the same prompts side by side through the layers, and what tells them apart at the end.

In memory at a time: one layer of the reference in float32, of the reference as it would be served and of the served
model, the ends of the three, the adapter, and the hidden states of the prompts.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

import loraplex
from loraplex.quant.config.online_words import AWQ

from ..config import EngineConfig
from ..device.device import Device, choose_device
from ..model.config import ModelConfig, base_signature
from ..model.identity.digest import files_state, model_digest
from ..model.loader import Checkpoint
from ..model.served import kv_cache_words, positions_words, quantization_words
from ..startup.build import open_weights_cache
from ..startup.gpu_memory import no_room
from ..startup.kv_cache_size import choose_cache_dtype
from ..startup.quantize_at_start import awq_checkpoint
from ..startup.static_scales import CacheScales, choose_scales
from ..startup.weights_cache import WeightsCache
from ..text.tokenizer import Tokenizer
from .certificate import Certificate, CertifyJob, Coverage, prompts_digest
from .compare import Comparison, log_probabilities
from .inputs import OpenedAdapter, ReferenceFiles, open_adapter, open_reference, reopen_adapter, table_length
from .merged import MergedAdapter
from .prompts import Prompt, generated_prompts, read_prompts
from .reference import Reference
from .served import ServedModel, ServedStream, load_adapter, make_batches

Report = Callable[[float, str], None]
"""Called with the share that is done and what is done now."""
ROWS: Final = 128
"""Positions whose logits are in memory at a time."""


def certify(job: CertifyJob, report: Report = lambda share, stage: None) -> Certificate:
    """ValueError says why there can be no certificate."""
    started = time.perf_counter()
    engine, folder = job.engine, Path(job.engine.model)
    report(0.0, "reading the models")
    config, base = ModelConfig.from_folder(folder), base_signature(folder)
    if config.spec.head is None:
        raise ValueError(f"a certificate compares tokens that a model generates: {config.why_silent}")
    reference = open_reference(job, config)
    folders = folder, reference.folder
    states, cache_words = [files_state(one) for one in folders], kv_cache_words(config, engine)
    served = _open_served(engine, config, base.fingerprint, report)
    texts = generated_prompts() if job.prompts is None else job.prompts
    with torch.inference_mode(), ExitStack() as scratch:
        adapter = open_adapter(job, base, scratch)
        invocation = () if adapter is None else adapter.manifest.invocation_tokens
        length = table_length(config, engine)
        longest = min(config.max_position_embeddings - 1, length)
        prompts = read_prompts(texts, Tokenizer(folder), config.vocab_size, longest, invocation)
        share = f"lower gpu_memory_utilization, now {engine.gpu_memory_utilization:g}, to leave room beside the engine"
        with no_room("a certificate was measured", share):
            streams = _Streams(reference, served, adapter, prompts, length)
            streams.advance(report)
            weights, kv_cache, both = streams.compare(report)
    if kv_cache_words(config, engine) != cache_words:
        raise ValueError("the static scales of the KV cache have changed meanwhile; certify again")
    base_digest, reference_digest = (model_digest(one) for one in folders)
    if [files_state(one) for one in folders] != states:
        raise ValueError("the model's files have changed meanwhile; certify again")
    coverage = Coverage(
        base=base_digest,
        reference=reference_digest,
        quantization=quantization_words(config, engine),
        kv_cache_dtype=cache_words,
        positions=positions_words(config, engine),
        arithmetic=served.device.arithmetic,
        runtime=served.device.runtime,
        adapter=None if adapter is None else adapter.manifest.digest,
        prompts=prompts_digest(texts),
        version=loraplex.__version__,
    )
    return Certificate(
        coverage=coverage,
        num_prompts=len(prompts),
        num_tokens=both.positions,
        reference_perplexity=both.reference_perplexity,
        weights=weights.figures(),
        kv_cache=kv_cache.figures(),
        both=both.figures(),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Served:
    """How the base is served."""

    weights_cache: WeightsCache | None
    """Which keeps `folder` from being removed."""
    folder: Path
    device: Device
    """What its weights become."""
    cache_dtype: torch.dtype
    scales: CacheScales


def _open_served(engine: EngineConfig, config: ModelConfig, fingerprint: str, report: Report) -> _Served:
    """As build_engine chooses it all."""
    folder = Path(engine.model)
    device, weights_cache = choose_device(engine, config), open_weights_cache(engine)
    cache_dtype = choose_cache_dtype(engine.kv_cache_dtype, device.stored_dtype)
    if engine.quantization == AWQ:
        folder = awq_checkpoint(folder, config, weights_cache, lambda words, seconds: report(0.0, words))
        config = ModelConfig.from_folder(folder)
        device = choose_device(engine, config)
    scales = choose_scales(engine, config, cache_dtype, Checkpoint(folder, config.spec), fingerprint)
    return _Served(weights_cache, folder, device, cache_dtype, scales)


class _Streams:
    """The prompts in the reference, and through the served path with either, or both, of its two roundings."""

    def __init__(
        self,
        reference: ReferenceFiles,
        served: _Served,
        adapter: OpenedAdapter | None,
        prompts: Sequence[Prompt],
        length: int,
    ) -> None:
        """`length`: positions of rotary tables."""
        own = None if adapter is None else reopen_adapter(adapter, reference)
        merged = MergedAdapter.none() if own is None else own.merged()
        self._num_layers, self._prompts = reference.config.num_layers, prompts
        self._reference = Reference(reference.config, reference.checkpoint, merged, prompts, length)
        plain = EngineConfig(model=str(reference.folder), device="cpu", dtype="float32")
        exact = choose_device(plain, reference.config)
        self._exact = ServedModel(reference.folder, exact, length)
        self._served = ServedModel(served.folder, served.device, length)
        exact_table = None if own is None else load_adapter(self._exact, own, torch.float32)
        served_table = None if adapter is None else load_adapter(self._served, adapter, served.device.stored_dtype)
        served_batches = make_batches(prompts, served_table)
        rounded = served.cache_dtype, served.scales
        self._kv_cache = ServedStream(self._exact, make_batches(prompts, exact_table), *rounded)
        self._weights = ServedStream(self._served, served_batches, _exact_cache(served.device), CacheScales())
        self._both = ServedStream(self._served, served_batches, *rounded)

    def advance(self, report: Report) -> None:
        """Through all layers."""
        for layer in range(self._num_layers):
            report((layer + 0.5) / (self._num_layers + 1), f"layer {layer + 1} of {self._num_layers}")
            self._reference.advance(layer)
            self._kv_cache.advance(self._exact.layer(layer))
            loaded = self._served.layer(layer)
            self._weights.advance(loaded)
            self._both.advance(loaded)
            del loaded  # before the next one comes

    def compare(self, report: Report) -> tuple[Comparison, Comparison, Comparison]:
        """The served weights alone, the served KV cache alone, both."""
        report((self._num_layers + 0.5) / (self._num_layers + 1), "comparing probabilities")
        comparisons = Comparison(), Comparison(), Comparison()
        head, (hidden, active) = self._reference.head(), self._reference.outputs()
        targets = torch.tensor([token for prompt in self._prompts for token in prompt.token_ids[1:]])
        first = 0
        for logits in zip(
            *(stream.logits(ROWS) for stream in (self._weights, self._kv_cache, self._both)), strict=True
        ):
            rows = slice(first, first := first + len(logits[0]))
            expected = log_probabilities(head.logits(hidden[rows], active[rows]))
            for comparison, found in zip(comparisons, logits, strict=True):
                comparison.add(expected, found, targets[rows])
        return comparisons


def _exact_cache(device: Device) -> torch.dtype:
    """What keys and values rest in without a rounding of their own: attention on CUDA reads them in the dtype of
    activations whatever they rest in."""
    return device.stored_dtype if device.is_cuda else torch.float32
