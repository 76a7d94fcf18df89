"""Sizes and times with which the figures for a GPU are made on a CPU."""

from collections.abc import Mapping, Sequence

import torch

from benchmarks.gpu.clock import Call
from benchmarks.gpu.figure import Stage
from benchmarks.gpu.size import Size

TINY = Size(
    hidden=64, intermediate=128, heads=4, kv_heads=2, head_dim=16, vocabulary=300, layers=2, decode=(2, 40), long=600,
    prefill=40, growing=(2, (20, 36)), lora_tokens=5, adapters=(1, 3), rank=16, group=32, few_rows=(1, 3),
    many_rows=(5,), float8_rows=(3,), stream_rows=3, sampled_rows=3, square=32, copy_bytes=64, cold_bytes=2000,
)  # fmt: skip


class FakeClock:
    """Makes each call once; each of the first side takes a microsecond, of the second two and so on."""

    def seconds(self, sides: Mapping[str, Sequence[Call]]) -> dict[str, float]:
        for calls in sides.values():
            for call in calls:
                call()
        return {name: (index + 1) * 1e-6 for index, name in enumerate(sides)}


def tiny_stage(size: Size = TINY) -> Stage:
    return Stage(torch.device("cpu"), FakeClock(), size)
