"""Figures of the whole engine: decode steps beside the bytes they must read, adapters beside the base, and everything
beside transformers."""

from functools import partial
from typing import Final

from . import engine_rows as rows
from .figure import Figure
from .size import Size
from .together import Measure, pick

PUBLISHED: Final = "TensorRT-LLM on an H200: 23,295"
ADAPTER_GOALS: Final = {1: 1.08, 8: 1.11, 64: 1.33}
SECONDS: Final[dict[Measure, float]] = {
    rows.little_rows: 80.0, rows.large_rows: 100.0, rows.adapted_rows: 80.0, rows.request_rows: 80.0,
    rows.slope_rows: 60.0, rows.short_rows: 45.0, rows.many_rows: 90.0, rows.long_rows: 110.0,
}  # fmt: skip
"""About what each engine takes, from its start to its end; the first of each model compiles some 55 kernels, a second
each."""


def figures(size: Size) -> list[Figure]:
    return [*_little(size), *_large(size), *_adapted(size), *_beside(size)]


def _little(size: Size) -> list[Figure]:
    name, steps = size.little.name, f"decode step of {size.crowd} x {size.context} tokens"
    return [
        _row(f"{name}: greedy tokens that transformers would say", rows.little_rows, "agreeing", 0.9, opens=True),
        _row(f"{name}: {steps}, captured: time / not captured", rows.little_rows, "captured", None, at_least=False),
        _row(f"{name}: {steps}: roofline / time", rows.little_rows, "roof", 0.40),
    ]


def _large(size: Size) -> list[Figure]:
    name = size.large.name
    steps = {"one": (1, 0.85), "crowd": (size.crowd, 0.80)}
    return [
        *(
            _row(
                f"{name}: decode step of {count} x {size.context} tokens: roofline / time",
                rows.large_rows, key, goal, opens=key == "one",
            )
            for key, (count, goal) in steps.items()
        ),
        _row(f"{name}: GPU busy share, {size.busy} streams", rows.large_rows, "busy", 0.98),
    ]  # fmt: skip


def _adapted(size: Size) -> list[Figure]:
    name, opened = size.large.name, rows.adapted_rows
    return [
        *(
            _row(
                f"{name}: {size.crowd} streams with {count} adapters r={size.rank}: time of a token / base",
                opened, str(count), ADAPTER_GOALS.get(count), at_least=False, opens=count == size.adapters[0],
            )
            for count in size.adapters
        ),
        _row(f"{name}: adapters loaded and unused: time of a token / none", opened, "unused", 1.005, at_least=False),
    ]  # fmt: skip


def _beside(size: Size) -> list[Figure]:
    large, little, (everyone, few) = size.large.name, size.little.name, size.population
    streams, prompt, answer = size.answers
    many = f"{little}: {everyone:,} adapters of ranks {size.ranks[0]} to {size.ranks[-1]}, Zipf"
    requests = f"{little}: {size.requests[0]} requests: tokens/s / transformers' continuous batching"
    slopes = f"{large}: slope of step time, {size.contexts[0]} to {size.contexts[-1]} tokens: FP8 KV cache / bfloat16"
    short = f"{large}: W4A16, one stream: time of a token / own bfloat16"
    speed = f"{large}: FP8 and FP8 KV cache, {streams} streams of {prompt} in, {answer} out ({PUBLISHED})"
    first = f"{many}: P99 time to the first token / with {few}"
    return [
        _row(requests, rows.request_rows, "", 3.0, opens=True),
        _row(slopes, rows.slope_rows, "", 0.57, at_least=False, opens=True),
        _row(short, rows.short_rows, "", 0.42, at_least=False, opens=True),
        _row(f"{many}: tokens/s / with {few}", rows.many_rows, "speed", 0.95, opens=True),
        _row(first, rows.many_rows, "first", 1.3, at_least=False),
        _row(speed, rows.long_rows, "", None, opens=True, unit="tokens/s"),
    ]


def _row(
    what: str, measure: Measure, name: str, goal: float | None, at_least: bool = True, opens: bool = False,
    unit: str = "x",
) -> Figure:  # fmt: skip
    """`opens`: the first of those that are measured together, whose time is that of all."""
    seconds = SECONDS[measure] if opens else 0.0
    return Figure(f"engine: {what}", unit, goal, partial(pick, measure, name, opens), at_least, seconds=seconds)
