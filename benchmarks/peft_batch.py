"""Sixteen sequences over eight adapters in one batch, beside transformers + peft with `adapter_names`; and the LoRA of
all linears alone, beside the usual gather of each token's weights."""

import random
from functools import cache
from pathlib import Path

from .bench_lora_cpu import measure
from .checkpoints import Dimensions, adapter, base_checkpoint
from .engine import MeasuredEngine
from .peers import Transformers, faster_dtype
from .report import Row
from .scale import Scale, medians

ADAPTERS, SEQUENCES, RANK = 8, 16, 16


def rank16(dimensions: Dimensions, count: int) -> dict[str, Path]:
    return {f"r16-{seed}": adapter(dimensions, RANK, seed) for seed in range(1, count + 1)}


@cache
def peft_peer(dimensions: Dimensions, threads: int) -> Transformers:
    """transformers + peft that holds the eight adapters; made once for all rows that ask."""
    return Transformers(base_checkpoint(dimensions), rank16(dimensions, ADAPTERS), faster_dtype(), threads)


def peft_batch(scale: Scale) -> list[Row]:
    adapters = rank16(scale.dimensions, ADAPTERS)
    names = [list(adapters)[index % ADAPTERS] for index in range(SEQUENCES)]
    engine = MeasuredEngine(base_checkpoint(scale.dimensions), adapters, 1 << 30)
    peer = peft_peer(scale.dimensions, engine.num_threads)
    source, size = random.Random(0), scale.dimensions.vocab
    prompts = [[source.randrange(10, size) for _ in range(scale.prompt_tokens)] for _ in range(SEQUENCES)]
    rates = medians(
        {
            "ours": lambda: engine.serve(names, SEQUENCES, scale.prompt_tokens, scale.output_tokens).tokens_per_second,
            "peft": lambda: peer.tokens_per_second(prompts, scale.output_tokens, names),
        },
        scale.rounds,
    )
    engine.close()
    return [
        Row("batch of 16 over 8 adapters", rates["ours"], "tokens/s"),
        Row("batch of 16 over 8 adapters, transformers + peft", rates["peft"], "tokens/s"),
        Row("batch of 16 over 8 adapters / transformers + peft", rates["ours"] / rates["peft"], "x", 3.0),
    ]


def gather_rows(scale: Scale) -> list[Row]:
    seconds = measure(SEQUENCES, ADAPTERS, RANK, scale.layers, 10 * scale.rounds)
    return [
        Row("LoRA of the seven linears, 16 tokens over 8 adapters", 1e6 * seconds["lora"], "us"),
        Row("the same by gather and bmm", 1e6 * seconds["gather"], "us"),
        Row("gather and bmm / ours", seconds["gather"] / seconds["lora"], "x", 5.0),
    ]
