"""Warm-up: every kernel runs once with the dtypes it will see, so that nothing compiles inside a request."""

from typing import Final

import numpy as np
import torch

from loraplex.lora.apply.batch import LoraBatch, PageTable
from loraplex.lora.apply.norms import compile_norms
from loraplex.lora.apply.vocabulary import compile_kernels

from ..attention.backend import AttentionBackend
from ..batch import Batch, StateSlots
from ..kernels import norm, silu
from ..kernels.token_layout import lay_out
from ..model.decoder import Decoder
from ..sampling.sampler import Sampler
from ..sampling.state import SampleRow
from ..sampling_params import SamplingParams

LONG_CONTEXT: Final = 2048
"""More than attention gives to one work item, so that pieces are merged."""
CHUNK: Final = 17
"""Tokens of a prompt: more than are left to one thread."""
EVERYTHING: Final = SamplingParams(
    temperature=0.7, top_p=0.9, top_k=5, min_p=0.01, presence_penalty=0.1, logit_bias={0: 1.0}, logprobs=1
)


@torch.inference_mode()
def warm_up(
    decoder: Decoder, cache: AttentionBackend, table: PageTable, sampler: Sampler, block_size: int, max_model_len: int
) -> None:
    """A long decode, and a step of a prompt with decodes, without and with LoRA. All keys and values go to the padding
    block, which nobody reads."""
    longest = min(LONG_CONTEXT, max_model_len)
    chunk = min(CHUNK, max_model_len)
    decodes = [1] * max(1, _parallel_tokens(decoder) - chunk)
    steps = [([1], [longest]), ([chunk, *decodes], [chunk, *decodes])]
    for counts, lengths in steps:
        for with_lora in (False, True):
            batch = _dummy_batch(counts, lengths, block_size)
            batch.lora = _no_adapter(table, sum(counts)) if with_lora else None
            logits = decoder.forward(batch, cache)
    if decoder.head is None:
        return
    compile_kernels(table, decoder.embedding.dtype)
    compile_norms(table)
    for params in (SamplingParams(temperature=0.0), EVERYTHING):
        sampler.sample(logits[:1], [SampleRow(params, 0, 0, [0], [], logprobs=params.logprobs)])
    cache.copy_blocks([(0, 0)])


def _parallel_tokens(decoder: Decoder) -> int:
    """Tokens from which on the norm and the activation use all threads: other code than for few tokens."""
    hidden = decoder.layers[0].mixer.inputs.method.in_features
    intermediate = min(layer.feed_forward.inner_size for layer in decoder.layers)
    return max(norm.SERIAL_ELEMENTS // hidden, silu.SERIAL_ELEMENTS // intermediate) + 1


def _dummy_batch(counts: list[int], lengths: list[int], block_size: int) -> Batch:
    """Sequences of token 0 whose last `counts` tokens are new; every block is the padding block."""
    tables = np.zeros((len(counts), -(-max(lengths) // block_size)), np.int32)
    starts = np.array(lengths) - np.array(counts)
    _, positions, slots, query_starts, context_lengths = lay_out(np.array(counts), starts, tables, block_size)
    return Batch(
        token_ids=torch.zeros(len(positions), dtype=torch.int64),
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(slots),
        query_starts=torch.from_numpy(query_starts),
        context_lengths=torch.from_numpy(context_lengths),
        block_tables=torch.from_numpy(tables),
        sample_rows=torch.tensor(counts[:1]) - 1,
        states=StateSlots(*(torch.zeros(size, dtype=torch.int32) for size in (len(counts), len(counts) + 1, 0, 0))),
    )


def _no_adapter(table: PageTable, tokens: int) -> LoraBatch | None:
    """Every token on slot 0, which holds no adapter yet: its ranks are 0, so nothing is read and nothing added."""
    return LoraBatch.build(table, torch.zeros(tokens, dtype=torch.int32), torch.ones(tokens))
