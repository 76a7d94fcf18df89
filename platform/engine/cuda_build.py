"""The runner on CUDA with all that it fills and reads."""

from typing import Final

import torch

from .attention.cuda import CudaAttention
from .config import EngineConfig
from .cuda_runner import CudaRunner
from .cuda_sampler import CudaSampler
from .cuda_stream import Queues
from .graph_pool import GraphPool, size_ladder
from .kernels.cuda.sampling.layout import MOST_TOKENS
from .kv_cache import blocks_of
from .model.decoder import Decoder
from .outbox import Outbox
from .protocol import MAX_ADAPTERS
from .step_inputs import StepInputs
from .step_layout import AdapterSlots

GRAPHS_PER_SIZE: Final = 6
"""With and without adapters, drawn and greedy: four that the warm-up captures; others come when a step asks."""


def most_tokens(config: EngineConfig) -> int:
    """Of any step, with its padding."""
    return max(config.max_num_batched_tokens, config.max_num_seqs)


def build_cuda_runner(
    config: EngineConfig, decoder: Decoder, cache: CudaAttention, adapters: AdapterSlots, queues: Queues,
    max_model_len: int,
) -> CudaRunner:  # fmt: skip
    """Nothing is compiled or captured yet. ValueError for a vocabulary that the sampler does not take."""
    table, vocab_size = adapters.table, len(decoder.embedding)
    if vocab_size > MOST_TOKENS:
        raise ValueError(f"the vocabulary has {vocab_size} tokens; on CUDA it may have {MOST_TOKENS}: use device cpu")
    device, tokens = table.arena.device, most_tokens(config)
    outbox = Outbox(queues.compute, queues.transfer)
    inputs = StepInputs(
        table,
        queues.compute,
        tokens=tokens,
        sequences=config.max_num_seqs,
        blocks=blocks_of(max_model_len, config.block_size),
        block_size=config.block_size,
        rounds=MAX_ADAPTERS,
    )
    return CudaRunner(
        decoder=decoder,
        cache=cache,
        adapters=adapters,
        sampler=CudaSampler(config.max_num_seqs, vocab_size, device, outbox),
        inputs=inputs,
        graphs=GraphPool(queues.capture, GRAPHS_PER_SIZE * len(size_ladder(config.max_num_seqs))),
        outbox=outbox,
        clipped=torch.zeros(1, tokens, dtype=torch.int64, device=device),
    )
