"""What an engine is made of on a CPU: compiled loops, a share of the free memory for keys and values."""

from loraplex.lora.residency.pool import AdapterPool
from loraplex.quant.storage.cpu_form import cpu_form

from ..attention.backend import AttentionBackend
from ..attention.bidirectional import EncoderAttention
from ..attention.cpu import cpu_attention
from ..delta_net.backend import DeltaNetBackend
from ..delta_net.cpu import CpuDeltaNet
from ..device.device import free_memory
from ..model.decoder import Decoder
from ..model.decoder_loader import DecoderLoader
from ..runner.runner import ModelRunner
from ..runner.steps import Runner
from ..sampling.sampler import Sampler
from .kv_cache_size import plan_kv_cache
from .loaded import Loaded, Shares
from .packed_weights import load_decoder
from .warmup import warm_up
from .weights_cache import WeightsCache


class CpuBuilder:
    def load(self, loader: DecoderLoader, max_model_len: int, cache: WeightsCache | None) -> tuple[Decoder, str]:
        return load_decoder(loader, max_model_len, cache, cpu_form())

    def divide(self, loaded: Loaded) -> Shares:
        config = loaded.config
        free = free_memory() - config.adapter_memory - config.adapter_host_memory
        static = loaded.scales.static is not None
        plan = plan_kv_cache(config, loaded.model, loaded.max_model_len, loaded.cache_dtype, free, static)
        return Shares(config.adapter_memory, plan)

    def reserve_cache(self, loaded: Loaded, blocks: int) -> AttentionBackend:
        shape = loaded.cache_shape(blocks)
        return cpu_attention(shape) if loaded.model.spec.keeps_keys else EncoderAttention(shape.layers)

    def reserve_states(self, loaded: Loaded, slots: int) -> DeltaNetBackend | None:
        shape = loaded.state_shape()
        return None if shape is None else CpuDeltaNet(shape, len(loaded.model.spec.recurrent_layers()), slots)

    def make_runner(
        self, loaded: Loaded, cache: AttentionBackend, states: DeltaNetBackend | None, adapters: AdapterPool
    ) -> tuple[Runner, str]:
        sampler, block_size = Sampler(), loaded.config.block_size
        loaded.decoder.attach_states(states)
        loaded.decoder.fuse(cache)
        warm_up(loaded.decoder, cache, adapters.table, sampler, block_size, loaded.max_model_len)
        return ModelRunner(loaded.decoder, cache, adapters, sampler, block_size, states), "kernels compiled"
