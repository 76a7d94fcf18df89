"""Figures of the whole engine: decode steps beside the bytes they must read, adapters beside the base, and everything
beside transformers."""

from functools import partial
from typing import Final

from . import engine_rows as rows
from .figure import Figure
from .size import QUICK, Size
from .together import Measure, pick

PUBLISHED: Final = "TensorRT-LLM on an H200, 128 in, 2048 out: 23,295"
ADAPTER_GOALS: Final = {1: 1.08, 8: 1.11, 64: 1.33}
SECONDS: Final[dict[Measure, float]] = {
    rows.little_rows: 48.0, rows.large_rows: 98.0, rows.adapted_rows: 42.0, rows.slope_rows: 38.0,
    rows.many_rows: 42.0, rows.long_rows: 120.0, rows.short_rows: 30.0, rows.request_rows: 60.0,
}  # fmt: skip
"""About what each engine takes on an H200, from its start to its end, with kernels that were compiled before. In the
order of the rows, the most important first, and last the peer: nobody knows how long it takes and what it leaves
behind."""
QUICK_SECONDS: Final[dict[Measure, float]] = SECONDS | {
    rows.large_rows: 82.0, rows.slope_rows: 30.0, rows.long_rows: 48.0,
}  # fmt: skip
"""Of sizes as `--quick` has them."""


def figures(size: Size) -> list[Figure]:
    return [*_little(size), *_large(size), *_adapted(size), *_beside(size)]


def _little(size: Size) -> list[Figure]:
    row = partial(_row, size)
    name, steps = size.little.name, f"decode step of {size.crowd} x {size.context} tokens"
    return [
        row(f"{name}: greedy tokens that transformers would say", rows.little_rows, "agreeing", 0.9, opens=True),
        row(f"{name}: {steps}, captured: time / not captured", rows.little_rows, "captured", None, at_least=False),
        row(f"{name}: {steps}: roofline / time", rows.little_rows, "roof", 0.40),
        row(f"{name}: GPU busy share, {size.crowd} streams", rows.little_rows, "busy", None),
    ]


def _large(size: Size) -> list[Figure]:
    name, row = size.large.name, partial(_row, size)
    steps = {"one": (1, 0.85), "crowd": (size.crowd, 0.80)}
    return [
        *(
            row(
                f"{name}: decode step of {count} x {size.context} tokens: roofline / time",
                rows.large_rows, key, goal, opens=key == "one",
            )
            for key, (count, goal) in steps.items()
        ),
        row(f"{name}: GPU busy share, {size.busy} streams", rows.large_rows, "busy", 0.98),
        row(_arrivals(size), rows.large_rows, "first", 2.5, at_least=False),
    ]  # fmt: skip


def _arrivals(size: Size) -> str:
    come = size.arrivals
    return (
        f"{size.large.name}: a request each {come.apart:g} decode steps (Poisson; 1 of {come.one_in} with {come.long} "
        f"tokens): P95 time to the first token of prompts of {come.short} / decode step"
    )


def _adapted(size: Size) -> list[Figure]:
    name, opened, row = size.large.name, rows.adapted_rows, partial(_row, size)
    return [
        *(
            row(
                f"{name}: {size.crowd} streams with {count} adapters r={size.rank}: time of a token / base",
                opened, str(count), ADAPTER_GOALS.get(count), at_least=False, opens=count == size.adapters[0],
            )
            for count in size.adapters
        ),
        row(f"{name}: adapters loaded and unused: time of a token / none", opened, "unused", 1.005, at_least=False),
    ]  # fmt: skip


def _beside(size: Size) -> list[Figure]:
    large, little, (everyone, few) = size.large.name, size.little.name, size.population
    (streams, prompt, answer), row = size.answers, partial(_row, size)
    many = f"{little}: {everyone:,} adapters of ranks {size.ranks[0]} to {size.ranks[-1]}, Zipf"
    requests = f"{little}: {size.requests[0]} requests: tokens/s / transformers' continuous batching"
    slopes = f"{large}: slope of step time, {size.contexts[0]} to {size.contexts[-1]} tokens: FP8 KV cache / bfloat16"
    short = f"{large}: W4A16, one stream: time of a token / own bfloat16"
    speed = f"{large}: FP8 and FP8 KV cache, {streams} streams of {prompt} in, {answer} out ({PUBLISHED})"
    first = f"{many}: P99 time to the first token / with {few}"
    return [
        row(slopes, rows.slope_rows, "", 0.57, at_least=False, opens=True),
        row(f"{many}: tokens/s / with {few}", rows.many_rows, "speed", None, opens=True),
        row(f"{many}: time with {few} and of the further bytes / time", rows.many_rows, "allowed", 0.9),
        row(first, rows.many_rows, "first", 1.3, at_least=False),
        row(f"{many}: tokens/s", rows.many_rows, "everyone", None, unit="tokens/s"),
        row(f"{little}: {few} adapters of the same ranks: tokens/s", rows.many_rows, "few", None, unit="tokens/s"),
        row(speed, rows.long_rows, "", None, opens=True, unit="tokens/s"),
        row(short, rows.short_rows, "", 0.42, at_least=False, opens=True),
        row(requests, rows.request_rows, "", 3.0, opens=True),
    ]


def _row(
    size: Size, what: str, measure: Measure, name: str, goal: float | None, at_least: bool = True, opens: bool = False,
    unit: str = "x",
) -> Figure:  # fmt: skip
    """`opens`: the first of those that are measured together, whose time is that of all."""
    seconds = (QUICK_SECONDS if size == QUICK else SECONDS)[measure] if opens else 0.0
    return Figure(f"engine: {what}", unit, goal, partial(pick, measure, name, opens), at_least, seconds=seconds)
