"""Warm-up: every kernel runs once with the dtypes it will see, so that nothing compiles inside a request."""

from typing import Final

import torch

from loraplex.lora.batch import LoraBatch, PageTable

from .attention.backend import AttentionBackend
from .batch import Batch
from .model.decoder import Decoder
from .sampler import Sampler
from .sampling import SamplingParams
from .sampling_state import SampleRow

CHUNK: Final = 5
"""Tokens of the prompt in the dummy step; odd and more than one, beside a decode of one."""
EVERYTHING: Final = SamplingParams(
    temperature=0.7, top_p=0.9, top_k=5, min_p=0.01, presence_penalty=0.1, logit_bias={0: 1.0}, logprobs=1
)


@torch.inference_mode()
def warm_up(decoder: Decoder, cache: AttentionBackend, table: PageTable, sampler: Sampler) -> None:
    """Runs a decode and a prompt, without and with LoRA. All of it goes to the padding block, which nobody reads."""
    for lora in (None, _every_token(table)):
        for counts in ([1], [1, CHUNK]):
            logits = decoder.forward(_dummy_batch(counts, lora if len(counts) > 1 else None), cache)
    for params in (SamplingParams(temperature=0.0), EVERYTHING):
        sampler.sample(logits[:1], [SampleRow(params, 0, 0, [0], [], logprobs=params.logprobs)])
    cache.copy_blocks([(0, 0)])


def _dummy_batch(counts: list[int], lora: LoraBatch | None) -> Batch:
    total = sum(counts)
    starts = torch.tensor([0, *counts]).cumsum(0)
    return Batch(
        token_ids=torch.zeros(total, dtype=torch.int64),
        positions=torch.cat([torch.arange(count) for count in counts]),
        slot_mapping=torch.cat([torch.arange(count) for count in counts]),
        query_starts=starts.to(torch.int32),
        context_lengths=torch.tensor(counts, dtype=torch.int32),
        block_tables=torch.zeros(len(counts), 1, dtype=torch.int32),
        sample_rows=starts[1:] - 1,
        lora=lora,
    )


def _every_token(table: PageTable) -> LoraBatch | None:
    """Slot 0 holds no adapter yet: its ranks are 0, so nothing is added and nothing is read."""
    tokens = 1 + CHUNK
    return LoraBatch.build(table, torch.zeros(tokens, dtype=torch.int32), torch.ones(tokens))
