"""Loaded: a model whose weights are there, with all that was decided about serving it, and what is made next of both.

`cpu_build.py` and `cuda_build.py` are the two Builders.
"""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from loraplex.lora.files.manifest import BaseSignature
from loraplex.lora.residency.cuda_limits import why_not_on_cuda
from loraplex.lora.residency.pool import AdapterPool

from ..attention.backend import AttentionBackend, CacheShape
from ..config import EngineConfig
from ..delta_net.backend import DeltaNetBackend
from ..delta_net.shape import StateShape
from ..device.device import Device
from ..kernels.cuda.sampling.layout import MOST_TOKENS
from ..model.base_modules import DecoderModules
from ..model.config import ModelConfig
from ..model.decoder import Decoder
from ..model.decoder_loader import DecoderLoader
from ..pooling.classifier import Classifier
from ..pooling.token_judge import TokenJudge
from ..runner.steps import Runner
from ..status import DeviceMemory
from .kv_cache_size import KvCachePlan, attention_layers, state_layers
from .loaded_files import LoadedFiles
from .static_scales import CacheScales
from .weights_cache import WeightsCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    config: EngineConfig
    files: LoadedFiles
    model: ModelConfig
    base: BaseSignature
    device: Device
    max_model_len: int
    cache_dtype: torch.dtype
    scales: CacheScales
    decoder: Decoder
    modules: DecoderModules
    classifier: Classifier
    judge: TokenJudge | None
    """Of a model whose head are rows of its lm_head."""

    def reserve_adapters(self, memory: int, host_memory: int) -> AdapterPool:
        """A pool with `memory` bytes of pages on the device."""
        return AdapterPool(
            self.base,
            memory=memory,
            slots=self.config.max_loaded_adapters,
            dtype=self.device.stored_dtype,
            device=self.device.device,
            host_memory=host_memory,
            modules=self.modules,
            refuse=partial(why_not_on_cuda, self.base, MOST_TOKENS) if self.device.is_cuda else lambda contents: None,
        )

    def state_shape(self) -> StateShape | None:
        """Of each recurrent layer; None without any."""
        shapes = state_layers(self.model)
        assert len(set(shapes)) <= 1
        return shapes[0] if shapes else None

    def cache_shape(self, blocks: int) -> CacheShape:
        return cache_shape(self.model, self.cache_dtype, blocks, self.config.block_size, self.scales)


@dataclass(frozen=True, slots=True)
class Shares:
    """Of a device's memory, beside the weights."""

    adapters: int
    """Bytes of pages."""
    cache: KvCachePlan
    device: DeviceMemory | None = None
    """What steps take, where that was measured."""
    words: str = ""
    """For the log, where more is shared out than the settings say."""


class Builder(Protocol):
    """What an engine is made of on one kind of device. Each method is called once, in this order."""

    def load(self, loader: DecoderLoader, max_model_len: int, cache: WeightsCache | None) -> tuple[Decoder, str]:
        """The decoder, and in words where its weights came from. ValueError when the tensors do not fit the
        configuration, or the device's memory."""

    def divide(self, loaded: Loaded) -> Shares:
        """The memory that is left. ValueError says what took how much, and what to change."""

    def reserve_cache(self, loaded: Loaded, blocks: int) -> AttentionBackend: ...

    def reserve_states(self, loaded: Loaded, slots: int) -> DeltaNetBackend | None:
        """None without recurrent layers."""

    def make_runner(
        self, loaded: Loaded, cache: AttentionBackend, states: DeltaNetBackend | None, adapters: AdapterPool
    ) -> tuple[Runner, str]:
        """One that compiles nothing any more, and in words what was done for that."""


def cache_shape(
    model: ModelConfig, dtype: torch.dtype, num_blocks: int, block_size: int, scales: CacheScales
) -> CacheShape:
    return CacheShape(
        layers=attention_layers(model),
        num_blocks=num_blocks,
        block_size=block_size,
        cache_dtype=dtype,
        static_scales=scales.static,
    )
