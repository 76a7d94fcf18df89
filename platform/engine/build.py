"""build_engine: from an EngineConfig to an engine that is warm and ready, told stage by stage."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from loraplex.lora.cuda_limits import why_not_on_cuda
from loraplex.lora.manifest import BaseSignature
from loraplex.lora.pool import AdapterPool
from loraplex.quant.online_words import AWQ

from .admission import Limits
from .attention.backend import AttentionBackend, CacheShape
from .attention.cpu import CpuAttention
from .base_modules import DecoderModules
from .block_pool import BlockPool
from .config import EngineConfig
from .core import EngineCore
from .device import Device, choose_device, free_bytes
from .kv_cache import KvCachePlan, cache_dtype_name, choose_cache_dtype, plan_kv_cache
from .model.config import ModelConfig, base_signature
from .model.decoder import Decoder, DecoderLoader
from .model.loader import Checkpoint
from .model.operations import cuda_operations
from .model.served import quantization_words
from .packed_weights import load_decoder
from .protocol import AdapterStatus, EngineInfo
from .quantize.at_start import awq_checkpoint
from .runner import ModelRunner
from .sampler import Sampler
from .scheduler import Scheduler
from .static_scales import CacheScales, choose_scales
from .steps import Runner
from .warmup import warm_up
from .weights_cache import WeightsCache

Report = Callable[[str, float], None]
"""Called with each stage that has ended, in words, and its seconds."""


@dataclass(slots=True)
class Engine:
    core: EngineCore
    adapters: AdapterPool
    cache: AttentionBackend
    info: EngineInfo

    def close(self) -> None:
        """End the loader threads. The memory goes with the last reference."""
        self.adapters.close()


def build_engine(config: EngineConfig, report: Report | None = None) -> Engine:
    """Read the model at `config.model` and make everything that serves it. ValueError says what cannot be, and why.

    `threads.prepare_environment()` must have run before torch was imported for its settings to count.
    """
    stages = Stages(report or (lambda stage, seconds: None))
    with stages.timed("configuration read"):
        folder = Path(config.model)
        model, base = ModelConfig.from_folder(folder), base_signature(folder)
        max_model_len = choose_max_model_len(config, model)
        device = choose_device(config, model)
        weights_cache = open_weights_cache(config)
        cache_dtype = choose_cache_dtype(config.kv_cache_dtype, device.stored_dtype)
    words = quantization_words(model, config)
    if config.quantization == AWQ:
        folder = awq_checkpoint(folder, model, weights_cache, stages.tell)
        model = ModelConfig.from_folder(folder)
        device = choose_device(config, model)
    with stages.timed("weights loaded") as stage:
        checkpoint = Checkpoint(folder)
        scales = choose_scales(config, model, cache_dtype, checkpoint, base.fingerprint)
        loader = make_loader(model, checkpoint, device)
        # Only a CPU's linears can be packed and kept.
        packed = None if device.is_cuda else weights_cache
        decoder, stage.words = load_decoder(loader, max_model_len, packed)
    with stages.timed("memory reserved"):
        adapters = _reserve_adapters(config, device, base, DecoderModules(decoder, checkpoint, model))
        free = free_bytes(config, device)
        plan = plan_kv_cache(config, model, max_model_len, cache_dtype, free, scales.static is not None)
        make = _on_cuda if device.is_cuda else _on_cpu
        cache, make_runner = make(config, model, device, cache_dtype, plan.num_blocks, scales)
    with stages.timed("kernels compiled"):
        runner = make_runner(decoder, adapters, max_model_len)
    computed = f"{base.fingerprint} {device.stored_dtype} {cache_dtype} {scales.identity} {device.online.words}"
    limits = _limits(config, model, max_model_len, computed)
    scheduler = Scheduler(limits, BlockPool(plan.num_blocks, config.block_size), adapters)
    core = EngineCore(scheduler, runner, lambda: describe_adapters(adapters))
    info = _info(config, model, device, words, cache_dtype, scales, plan, decoder, max_model_len, stages.seconds)
    return Engine(core, adapters, cache, info)


MakeRunner = Callable[[Decoder, AdapterPool, int], Runner]
"""From decoder, adapters and max_model_len to a runner that compiles nothing any more."""


def _on_cpu(
    config: EngineConfig, model: ModelConfig, device: Device, dtype: torch.dtype, blocks: int, scales: CacheScales
) -> tuple[AttentionBackend, MakeRunner]:
    cache = reserve_cache(model, dtype, blocks, config.block_size, scales)

    def make_runner(decoder: Decoder, adapters: AdapterPool, max_model_len: int) -> Runner:
        sampler = Sampler()
        decoder.fuse(cache)
        warm_up(decoder, cache, adapters.table, sampler, config.block_size, max_model_len)
        return ModelRunner(decoder, cache, adapters, sampler, config.block_size)

    return cache, make_runner


def _on_cuda(
    config: EngineConfig, model: ModelConfig, device: Device, dtype: torch.dtype, blocks: int, scales: CacheScales
) -> tuple[AttentionBackend, MakeRunner]:
    from . import cuda_build, cuda_stream, cuda_warmup
    from .attention.cuda import CudaAttention

    shape = cache_shape(model, dtype, blocks, config.block_size, scales)
    cache = CudaAttention(shape, max_tokens=cuda_build.most_tokens(config), device=device.device)

    def make_runner(decoder: Decoder, adapters: AdapterPool, max_model_len: int) -> Runner:
        queues = cuda_stream.open_queues(device.device)
        runner = cuda_build.build_cuda_runner(config, decoder, cache, adapters, queues, max_model_len)
        cuda_warmup.warm_up_cuda(runner, config, max_model_len)
        return runner

    return cache, make_runner


def make_loader(model: ModelConfig, checkpoint: Checkpoint, device: Device) -> DecoderLoader:
    loader = DecoderLoader(model, checkpoint, device.scheme, device.stored_dtype, device.online)
    if device.is_cuda:
        loader.device, loader.operations = device.device, cuda_operations()
    return loader


def choose_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """Tokens of prompt plus output. ValueError beyond the positions the model was made for."""
    longest = model.max_position_embeddings
    if config.max_model_len is None:
        return longest
    if not 2 <= config.max_model_len <= longest:
        raise ValueError(f"max_model_len must be between 2 and {longest}, the model's own, got {config.max_model_len}")
    return config.max_model_len


def describe_adapters(pool: AdapterPool) -> list[AdapterStatus]:
    """The pool's own view of each registered adapter, for the heartbeat."""
    return [AdapterStatus(**dataclasses.asdict(residency)) for residency in pool.statuses()]


def open_weights_cache(config: EngineConfig) -> WeightsCache | None:
    """None where nothing is to be kept."""
    if not config.weights_cache or not config.weights_cache_bytes:
        return None
    return WeightsCache(Path(config.weights_cache), config.weights_cache_bytes)


@dataclass(slots=True)
class Stage:
    words: str


class Stages:
    def __init__(self, report: Report) -> None:
        self._report = report
        self.seconds = 0.0

    @contextmanager
    def timed(self, words: str) -> Iterator[Stage]:
        """`words` of what it yields may be changed until it ends."""
        started, stage = time.perf_counter(), Stage(words)
        yield stage
        self.tell(stage.words, time.perf_counter() - started)

    def tell(self, words: str, seconds: float) -> None:
        """Of a stage that has ended."""
        self.seconds += seconds
        self._report(words, seconds)


def _reserve_adapters(
    config: EngineConfig, device: Device, base: BaseSignature, modules: DecoderModules
) -> AdapterPool:
    return AdapterPool(
        base,
        memory=config.adapter_memory,
        slots=config.max_loaded_adapters,
        dtype=device.stored_dtype,
        device=device.device,
        host_memory=config.adapter_host_memory,
        modules=modules,
        refuse=partial(why_not_on_cuda, base) if device.is_cuda else lambda contents: None,
    )


def reserve_cache(
    model: ModelConfig, dtype: torch.dtype, num_blocks: int, block_size: int, scales: CacheScales
) -> CpuAttention:
    """The KV cache of all layers; it takes memory as it fills."""
    return CpuAttention(cache_shape(model, dtype, num_blocks, block_size, scales))


def cache_shape(
    model: ModelConfig, dtype: torch.dtype, num_blocks: int, block_size: int, scales: CacheScales
) -> CacheShape:
    return CacheShape(
        num_layers=model.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        cache_dtype=dtype,
        scale=model.head_dim**-0.5,
        sliding_window=model.sliding_windows,
        static_scales=scales.static,
    )


def _limits(config: EngineConfig, model: ModelConfig, max_model_len: int, fingerprint: str) -> Limits:
    return Limits(
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_queue=config.max_queue,
        eos_token_ids=frozenset(model.eos_token_ids),
        fingerprint=fingerprint,
        enable_prefix_caching=config.enable_prefix_caching,
    )


def _info(
    config: EngineConfig,
    model: ModelConfig,
    device: Device,
    quantization: str,
    cache_dtype: torch.dtype,
    scales: CacheScales,
    plan: KvCachePlan,
    decoder: Decoder,
    max_model_len: int,
    load_seconds: float,
) -> EngineInfo:
    return EngineInfo(
        model=config.served_name or Path(config.model).name,
        architecture=model.architecture,
        device=str(device.device),
        compute=device.compute,
        arithmetic=device.arithmetic,
        dtype=str(device.stored_dtype).removeprefix("torch."),
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        block_size=config.block_size,
        num_blocks=plan.num_usable,
        kv_cache_bytes=plan.bytes,
        kv_cache_dtype=cache_dtype_name(cache_dtype),
        kv_cache_scales=scales.words,
        kv_values_per_token=2 * model.num_layers * model.num_kv_heads * model.head_dim,
        bfloat16_blocks=max(0, plan.bfloat16_blocks - 1),
        weight_bytes=decoder.weight_bytes(),
        adapter_memory=config.adapter_memory,
        adapter_host_memory=config.adapter_host_memory,
        max_loaded_adapters=config.max_loaded_adapters,
        num_threads=device.num_threads,
        quantization=quantization,
        load_seconds=load_seconds,
    )
