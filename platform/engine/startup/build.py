"""build_engine: from an EngineConfig to an engine that is warm and ready, told stage by stage."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from loraplex.lora.residency.pool import AdapterPool
from loraplex.quant.config.online_words import AWQ

from ..attention.backend import AttentionBackend
from ..config import EngineConfig, default_step_tokens
from ..constraints.grammar_manager import GrammarManager, make_grammar_manager
from ..core import EngineCore
from ..device.device import Device, choose_device
from ..kv_cache.block_pool import BlockPool
from ..kv_cache.state_pool import StatePool
from ..model.base_modules import DecoderModules
from ..model.config import ModelConfig, base_signature
from ..model.decoder_loader import DecoderLoader
from ..model.loader import Checkpoint
from ..model.operations.operations import cpu_operations, cuda_operations
from ..model.served import quantization_words
from ..pooling.classifier import Classifier
from ..pooling.dense import Dense, read_dense
from ..pooling.modules_file import read_modules
from ..pooling.token_judge import TokenJudge, read_judge
from ..pooling.wanted import ModelClasses, ModelPooling, PoolingKind
from ..protocol import EngineInfo
from ..scheduler.admission import Limits
from ..scheduler.scheduler import Scheduler
from ..status import AdapterStatus
from .kv_cache_size import KvCachePlan, attention_layers, cache_dtype_name, choose_cache_dtype
from .loaded import Builder, Loaded, Shares
from .loaded_files import LoadedFiles
from .static_scales import choose_scales
from .weights_cache import WeightsCache

Report = Callable[[str, float], None]
"""Called with each stage that has ended, in words, and its seconds."""


@dataclass(slots=True)
class Engine:
    core: EngineCore
    adapters: AdapterPool
    cache: AttentionBackend
    info: EngineInfo
    grammar_manager: GrammarManager

    def close(self) -> None:
        """End the loader threads and the grammar process. The memory goes with the last reference."""
        self.adapters.close()
        self.grammar_manager.close()


def build_engine(config: EngineConfig, report: Report | None = None) -> Engine:
    """Read the model at `config.model` and make everything that serves it. ValueError says what cannot be, and why.

    `threads.prepare_environment()` must have run before torch was imported for its settings to count.
    """
    stages = Stages(report or (lambda stage, seconds: None))
    with stages.timed("configuration read"):
        folder, files = Path(config.model), LoadedFiles.seen(config)
        model, base = ModelConfig.from_folder(folder), base_signature(folder)
        max_model_len = choose_max_model_len(config, model)
        if model.task == "embed":
            read_modules(folder, model.hidden_size)  # it is refused before it takes memory: it can do nothing else
        device = choose_device(config, model)
        config = msgspec.structs.replace(config, max_num_batched_tokens=choose_step_tokens(config, device, model))
        builder = choose_builder(config, device)
        weights_cache = open_weights_cache(config)
        cache_dtype = choose_cache_dtype(config.kv_cache_dtype, device.stored_dtype)
    words = quantization_words(model, config)
    if config.quantization == AWQ:
        from .quantize_at_start import awq_checkpoint

        folder = awq_checkpoint(folder, model, weights_cache, stages.tell)
        model = ModelConfig.from_folder(folder)
        device = choose_device(config, model)
    with stages.timed("weights loaded") as stage:
        checkpoint, judge = Checkpoint(folder, model.spec), _read_judge(config, model)
        scales = choose_scales(config, model, cache_dtype, checkpoint, base.fingerprint)
        loader = make_loader(model, checkpoint, device)
        decoder, stage.words = builder.load(loader, max_model_len, weights_cache)
        stage.words += checkpoint.left_out_words
    loaded = Loaded(
        config=config,
        files=files.until(LoadedFiles.seen(config)),
        model=model,
        base=base,
        device=device,
        max_model_len=max_model_len,
        cache_dtype=cache_dtype,
        scales=scales,
        decoder=decoder,
        modules=DecoderModules(decoder, checkpoint, model),
        classifier=_classifier(checkpoint, model, judge),
        judge=judge,
    )
    with stages.timed("memory reserved") as stage:
        shares = builder.divide(loaded)
        stage.words += shares.words and f": {shares.words}"
        adapters = loaded.reserve_adapters(shares.adapters, config.adapter_host_memory)
        cache = builder.reserve_cache(loaded, shares.cache.num_blocks)
        states = builder.reserve_states(loaded, shares.cache.num_slots)
        stage.words += _state_words(shares.cache)
    with stages.timed("kernels compiled") as stage:
        runner, stage.words = builder.make_runner(loaded, cache, states, adapters)
    embeddings = _embeddings(loaded)
    scheduler = Scheduler(
        _limits(loaded, embeddings.dense),
        BlockPool(shares.cache.num_blocks, config.block_size),
        adapters,
        states=None if states is None else StatePool(shares.cache.num_slots),
    )
    grammar_manager = make_grammar_manager(config.tokenizer or config.model)
    core = EngineCore(
        scheduler,
        runner,
        lambda: describe_adapters(adapters),
        lambda: adapters.evictions,
        grammar_manager=grammar_manager,
    )
    return Engine(core, adapters, cache, _info(loaded, shares, words, stages.seconds, embeddings), grammar_manager)


def choose_builder(config: EngineConfig, device: Device) -> Builder:
    """ValueError when other processes hold the memory that this one may take."""
    if device.is_cuda:
        from .cuda_build import CudaBuilder

        return CudaBuilder(config, device)
    from .cpu_build import CpuBuilder

    return CpuBuilder()


def make_loader(model: ModelConfig, checkpoint: Checkpoint, device: Device) -> DecoderLoader:
    operations = cuda_operations() if device.is_cuda else cpu_operations()
    return DecoderLoader(
        model,
        checkpoint,
        device.scheme,
        device.stored_dtype,
        device.online,
        device=device.device,
        operations=operations,
    )


def choose_step_tokens(config: EngineConfig, device: Device, model: ModelConfig) -> int:
    """Tokens of one step: without keys a prompt is computed in one."""
    tokens = config.max_num_batched_tokens or default_step_tokens(device.device.type, config.max_num_seqs)
    return tokens if model.spec.keeps_keys else max(tokens, choose_max_model_len(config, model))


def choose_max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    """Tokens of prompt plus output. ValueError beyond the positions the model was made for."""
    return model.length(config.max_model_len)


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


def _state_words(plan: KvCachePlan) -> str:
    """Nothing for a model without recurrent layers."""
    if not plan.num_slots:
        return ""
    size, total = plan.slot_bytes / 1e6, plan.state_bytes / 1e6
    return f"; {plan.num_states} states of recurrent layers, {size:.1f} MB each, {total:,.0f} MB in all"


def _limits(loaded: Loaded, dense: tuple[Dense, ...]) -> Limits:
    config, device, scales = loaded.config, loaded.device, loaded.scales
    computed = (device.stored_dtype, loaded.cache_dtype, scales.identity, device.online.words)
    return Limits(
        vocab_size=loaded.model.vocab_size,
        max_model_len=loaded.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_queue=config.max_queue,
        eos_token_ids=frozenset(loaded.model.eos_token_ids),
        fingerprint=" ".join(map(str, (loaded.base.fingerprint, *computed))),
        enable_prefix_caching=config.enable_prefix_caching and loaded.model.spec.keeps_keys,
        why_silent=loaded.model.why_silent,
        makes_logits=loaded.decoder.head is not None,
        classifier=loaded.classifier,
        dense=dense,
        splits_prompts=loaded.model.spec.keeps_keys,
        head_is_logits=loaded.judge is not None,
        seed=config.seed,
    )


def _read_judge(config: EngineConfig, model: ModelConfig) -> TokenJudge | None:
    judge = read_judge(Path(config.model), model.vocab_size, config.classifier_from_token)
    if judge is not None and model.spec.head is None:
        raise ValueError("the model is to judge by two tokens and has no lm_head that scores them")
    return judge


def _classifier(checkpoint: Checkpoint, model: ModelConfig, judge: TokenJudge | None) -> Classifier:
    if judge is None:
        return Classifier(model.spec.classifier, checkpoint.classifier(model))
    [linear] = model.spec.classifier.linears
    head = checkpoint.token_head(model, judge.true_token, judge.false_token)
    return Classifier(model.spec.classifier, {f"{linear.path}.weight": head})


def _classes(loaded: Loaded) -> ModelClasses | None:
    model = loaded.model
    if loaded.judge is not None:
        return ModelClasses(labels=["LABEL_0"], pairs=loaded.judge.template)
    return ModelClasses(labels=[*model.labels], activation=model.label_activation) if model.labels else None


class _Embeddings(NamedTuple):
    pooling: ModelPooling | None
    """This and the next as of EngineInfo."""
    refusal: str
    dense: tuple[Dense, ...] = ()


def _embeddings(loaded: Loaded) -> _Embeddings:
    try:
        modules = read_modules(Path(loaded.config.model), loaded.model.hidden_size)
        return _Embeddings(modules.pooling, "", read_dense(modules.dense))
    except ValueError as error:
        return _Embeddings(None, str(error))


def _info(
    loaded: Loaded, shares: Shares, quantization: str, load_seconds: float, embeddings: _Embeddings
) -> EngineInfo:
    config, model, device = loaded.config, loaded.model, loaded.device
    return EngineInfo(
        model=config.served_name or Path(config.model).name,
        base=loaded.base.fingerprint,
        base_files=loaded.files.base,
        architecture=model.architecture,
        device=str(device.device),
        compute=device.compute,
        arithmetic=device.arithmetic,
        runtime=device.runtime,
        dtype=str(device.stored_dtype).removeprefix("torch."),
        vocab_size=model.vocab_size,
        max_model_len=loaded.max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        num_blocks=shares.cache.num_usable,
        kv_cache_bytes=shares.cache.bytes,
        num_states=shares.cache.num_states,
        state_bytes=shares.cache.state_bytes,
        kv_cache_dtype=cache_dtype_name(loaded.cache_dtype),
        kv_cache_scales=loaded.scales.words,
        kv_cache_files=loaded.files.kv_cache,
        kv_values_per_token=sum(layer.numbers_per_token for layer in attention_layers(model)),
        bfloat16_blocks=max(0, shares.cache.bfloat16_blocks - 1),
        weight_bytes=loaded.decoder.weight_bytes(),
        adapter_memory=shares.adapters,
        adapter_host_memory=config.adapter_host_memory,
        max_loaded_adapters=config.max_loaded_adapters,
        num_threads=device.num_threads,
        quantization=quantization,
        load_seconds=load_seconds,
        pooling=embeddings.pooling,
        pooling_refusal=embeddings.refusal,
        classes=_classes(loaded),
        keeps_beginning=not model.spec.keeps_keys,
        classified_by=PoolingKind(model.spec.classifier.pooling),
        why_silent=model.why_silent,
        device_memory=shares.device,
    )
