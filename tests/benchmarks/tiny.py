"""Sizes and times with which the figures for a GPU are made on a CPU."""

from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.gpu.__main__ import MeasurePart
from benchmarks.gpu.clock import Call
from benchmarks.gpu.figure import Figure, Stage
from benchmarks.gpu.measure import measure
from benchmarks.gpu.models import Model
from benchmarks.gpu.shapes import SOFT_CAP, Arrivals, Family, Mixture, kind
from benchmarks.gpu.size import Size
from benchmarks.report import Row
from loraplex.engine.delta_net.shape import StateShape

LITTLE, LARGE = (
    Model(name, 64, 96, 2, 4, 2, 16, 300, tied=tied) for name, tied in (("little", True), ("large", False))
)
KINDS = (
    ("soft cap", kind(4, 2, 16, soft_cap=SOFT_CAP)), ("sinks", kind(4, 1, 16, sinks=True)), ("plain", kind(6, 2, 32))
)  # fmt: skip
NET = StateShape(num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=24, conv_kernel=4)
FAMILIES = (
    Family(
        "opt-350m", 300, 1 << 20,
        (
            ("vocab_size", 300), ("hidden_size", 32), ("ffn_dim", 48), ("num_hidden_layers", 2),
            ("num_attention_heads", 2), ("word_embed_proj_dim", 16), ("max_position_embeddings", 512),
        ),
    ),
    Family(
        "gemma3-1b", 300, 1 << 20,
        (
            ("vocab_size", 300), ("hidden_size", 32), ("intermediate_size", 48), ("num_hidden_layers", 2),
            ("num_attention_heads", 2), ("head_dim", 16), ("sliding_window", 8),
            ("layer_types", ("sliding_attention", "full_attention")),
        ),
    ),
    Family(
        "qwen3.5-0.8b", 300, 1 << 20,
        (
            ("vocab_size", 300), ("hidden_size", 32), ("intermediate_size", 48), ("num_hidden_layers", 2),
            ("num_attention_heads", 2), ("num_key_value_heads", 1), ("head_dim", 16), ("linear_num_key_heads", 1),
            ("linear_num_value_heads", 2), ("linear_key_head_dim", 16), ("linear_value_head_dim", 16),
            ("layer_types", ("linear_attention", "full_attention")),
        ),
    ),
)  # fmt: skip
MIXTURE_MODELS = (
    Family(
        "qwen3-30b-a3b, 8 layers", 300, 1 << 20,
        (
            ("vocab_size", 300), ("hidden_size", 32), ("num_hidden_layers", 2), ("num_attention_heads", 2),
            ("num_key_value_heads", 1), ("head_dim", 16), ("num_experts", 8), ("num_experts_per_tok", 2),
            ("moe_intermediate_size", 32),
        ),
    ),
)  # fmt: skip
TINY = Size(
    hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocabulary=300, layers=2, decode=(2, 40), long=600,
    prefill=40, growing=(2, (20, 36)), lora_tokens=5, adapters=(1, 3), rank=16, group=32, few_rows=(1, 3),
    dense_rows=(1, 3), many_rows=(5,), float8_rows=(3,), stream_rows=3, sampled_rows=3, square=32, copy_bytes=64,
    cold_bytes=2000,
    large=LARGE, little=LITTLE, judged=12, said=4, crowd=4, busy=3, context=24, steps=8, requests=(6, 3, 9),
    contexts=(16, 32, 48), growing_streams=2, answers=(3, 5, 7), population=(6, 2), visits=(8, 5, 4), ranks=(8, 16),
    arrivals=Arrivals(requests=12, apart=2, short=5, long=20, one_in=4, answer=4),
    kinds=KINDS, nets=(("tiny", NET),), net_decodes=3, net_prefill=(2, 9), families=FAMILIES, concurrent=(2, 3),
    few_adapters=2, mixture_models=MIXTURE_MODELS, mixture_decodes=(1, 3), mixture_prompts=9,
    mixtures=(Mixture("tiny", 128, 128, 5, 2, ("bfloat16", "int4", "float8", "mxfp4")),),
)  # fmt: skip


class FakeClock:
    """Makes each call once; each of the first side takes a microsecond, of the second two and so on."""

    def seconds(self, sides: Mapping[str, Sequence[Call]]) -> dict[str, float]:
        for calls in sides.values():
            for call in calls:
                call()
        return {name: (index + 1) * 1e-6 for index, name in enumerate(sides)}


def beside(stage: Stage) -> MeasurePart:
    """In this process."""

    def measure_part(name: str, figures: Sequence[Figure], allowed: float, publish: Callable[[Row], None]) -> int:
        return measure(figures, stage, allowed, publish)

    return measure_part


def tiny_stage(size: Size = TINY) -> Stage:
    return Stage(torch.device("cpu"), FakeClock(), size)
