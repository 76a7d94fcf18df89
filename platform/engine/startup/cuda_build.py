"""What an engine is made of on CUDA: a measured split of the card's memory, and the runner with all that it fills and
reads."""

import torch

from loraplex.lora.kernels.cuda.tiles import most_grid_tokens
from loraplex.lora.residency.cuda_limits import most_tokens
from loraplex.lora.residency.pool import AdapterPool
from loraplex.quant.storage.cuda_form import cuda_form

from ..attention.backend import AttentionBackend
from ..attention.cuda import CudaAttention, CudaBackend, MixedCudaAttention, cuda_attention
from ..config import EngineConfig
from ..delta_net.backend import DeltaNetBackend
from ..delta_net.cuda import CudaDeltaNet
from ..device import cuda_stream
from ..device.device import Device
from ..device.device_time import DeviceTime
from ..device.host_transfer import HostTransfer
from ..kernels.cuda.frozen import freeze_launches
from ..kernels.cuda.sampling.layout import MOST_TOKENS
from ..model.decoder import Decoder
from ..model.decoder_loader import DecoderLoader
from ..protocol import MAX_ADAPTERS
from ..runner.cuda_runner import CudaRunner
from ..runner.graph_pool import GraphPool
from ..runner.step_inputs import StepInputs
from ..runner.step_layout import AdapterSlots
from ..runner.steps import Runner
from ..sampling.cuda.sampler import CudaSampler
from . import cuda_warmup, gpu_profile
from .gpu_memory import GraphPlan, gigabytes, no_room, plan_graphs, split_memory
from .kv_cache_size import LEAST_BLOCKS, blocks_of
from .loaded import Loaded, Shares
from .packed_weights import load_decoder
from .weights_cache import WeightsCache


class CudaBuilder:
    """The methods of loaded.Builder, each called once and in their order."""

    def __init__(self, config: EngineConfig, device: Device) -> None:
        """ValueError when other processes hold what this one may take, and for steps that no grid holds."""
        check_step_size(config)
        freeze_launches()
        self._config = config
        self._profile = gpu_profile.GpuProfile(gpu_profile.open_gauge(device.device), config.gpu_memory_utilization)
        self._queues = cuda_stream.open_queues(device.device)

    def load(self, loader: DecoderLoader, max_model_len: int, cache: WeightsCache | None) -> tuple[Decoder, str]:
        form = cuda_form(loader.device, loader.online, loader.scheme.activations)
        with no_room("the weights were loaded", "set quantization to int4 or fp8"), self._profile.weights():
            return load_decoder(loader, max_model_len, cache, form)

    def divide(self, loaded: Loaded) -> Shares:
        config, model = self._config, loaded.model
        steps = f"lower max_num_batched_tokens, now {config.max_num_batched_tokens}"
        with no_room("its largest steps were tried", steps, self._fewer_sequences()):
            self._try_largest_steps(loaded)
        seen = self._profile.seen(self._graphs(loaded).bytes)
        split = split_memory(config, model, seen, loaded.cache_dtype, loaded.scales.static is not None)
        return Shares(split.adapters, split.cache, split.describe(), split.words)

    def _try_largest_steps(self, loaded: Loaded) -> None:
        """With buffers of their own, as large as those that will serve, over a cache of the padding block."""
        with self._profile.activations():
            adapters = loaded.reserve_adapters(memory=0, host_memory=0)
            states = self.reserve_states(loaded, LEAST_BLOCKS)
            runner = self._runner(loaded, self._cache(loaded, LEAST_BLOCKS), states, adapters)
            cuda_warmup.run_largest(runner, self._config, loaded.max_model_len)
        with self._profile.graph_pool():
            cuda_warmup.run_largest_captured(runner, self._config, loaded.max_model_len)
        adapters.close()

    def reserve_cache(self, loaded: Loaded, blocks: int) -> AttentionBackend:
        with no_room("the KV cache was reserved", self._smaller_share()):
            return self._cache(loaded, blocks)

    def reserve_states(self, loaded: Loaded, slots: int) -> DeltaNetBackend | None:
        shape = loaded.state_shape()
        if shape is None:
            return None
        with no_room("the states of recurrent layers were reserved", self._smaller_share()):
            return CudaDeltaNet(shape, len(loaded.model.spec.recurrent_layers()), slots, loaded.device.device)

    def make_runner(
        self, loaded: Loaded, cache: AttentionBackend, states: DeltaNetBackend | None, adapters: AdapterPool
    ) -> tuple[Runner, str]:
        assert isinstance(cache, CudaAttention | MixedCudaAttention)
        with no_room("steps were captured", self._smaller_share(), self._fewer_sequences()):
            runner = self._runner(loaded, cache, states, adapters)
            before = self._profile.taken()
            cuda_warmup.warm_up_cuda(runner, self._config, loaded.max_model_len)
            taken = self._profile.taken() - before
        graphs, plan = runner.graphs, self._graphs(loaded)
        graphs.serves = True
        captured = f"{len(graphs)} steps captured in {gigabytes(taken)} and {graphs.seconds:.1f} s"
        return runner, f"kernels compiled: {captured}; at most {plan.most}, about {gigabytes(plan.bytes)}"

    def _cache(self, loaded: Loaded, blocks: int) -> CudaBackend:
        shape, device = loaded.cache_shape(blocks), loaded.device.device
        return cuda_attention(shape, max_tokens=self._config.most_step_tokens, device=device)

    def _runner(
        self, loaded: Loaded, cache: CudaBackend, states: DeltaNetBackend | None, adapters: AdapterPool
    ) -> CudaRunner:
        loaded.decoder.attach_states(states)
        arguments = self._config, loaded.decoder, cache, adapters, self._queues, loaded.max_model_len
        return build_cuda_runner(*arguments, self._graphs(loaded), states)

    def _graphs(self, loaded: Loaded) -> GraphPlan:
        return plan_graphs(self._config, loaded.model.num_layers, self._profile.total)

    def _smaller_share(self) -> str:
        return f"lower gpu_memory_utilization, now {self._config.gpu_memory_utilization:g}"

    def _fewer_sequences(self) -> str:
        return f"lower max_num_seqs, now {self._config.max_num_seqs}"


def check_step_size(config: EngineConfig) -> None:
    """Before minutes are spent on loading. Places in what a step's tokens share are within 32 bits, too."""
    most = most_grid_tokens(config.max_loaded_adapters)
    if config.most_step_tokens > most:
        name = "max_num_batched_tokens" if config.max_num_batched_tokens > most else "max_num_seqs"
        raise ValueError(
            f"{name} is {getattr(config, name):,}; on CUDA a step may have {most:,} tokens where "
            f"max_loaded_adapters is {config.max_loaded_adapters:,}"
        )


def build_cuda_runner(
    config: EngineConfig, decoder: Decoder, cache: CudaBackend, adapters: AdapterSlots, queues: cuda_stream.Queues,
    max_model_len: int, graphs: GraphPlan, states: DeltaNetBackend | None = None,
) -> CudaRunner:  # fmt: skip
    """Nothing is compiled or captured yet. ValueError for a vocabulary that the sampler does not take."""
    table, vocab_size = adapters.table, len(decoder.embedding.table)
    if vocab_size > MOST_TOKENS:
        raise ValueError(f"the vocabulary has {vocab_size} tokens; on CUDA it may have {MOST_TOKENS}: use device cpu")
    device, tokens = table.arena.device, config.most_step_tokens
    host_transfer = HostTransfer(queues.compute, queues.transfer)
    inputs = StepInputs(
        table,
        queues.compute,
        tokens=tokens,
        sequences=config.max_num_seqs,
        blocks=blocks_of(max_model_len, config.block_size),
        block_size=config.block_size,
        rounds=MAX_ADAPTERS,
        has_states=states is not None,
        sizes=graphs.sizes,
    )
    return CudaRunner(
        decoder=decoder,
        cache=cache,
        adapters=adapters,
        sampler=CudaSampler(
            config.max_num_seqs, most_tokens(vocab_size, MOST_TOKENS), device, host_transfer, inputs.parameters
        ),
        inputs=inputs,
        graphs=GraphPool(queues.capture, graphs.most),
        host_transfer=host_transfer,
        device_time=DeviceTime(queues.mark),
        clipped=torch.zeros(1, tokens, dtype=torch.int64, device=device),
        states=states,
    )
