"""How large the rows of `benchmarks.lora` are: as their goals say, or tiny to see that they work."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from .checkpoints import HALF_BILLION, SMALL, Dimensions


@dataclass(frozen=True)
class Scale:
    dimensions: Dimensions = HALF_BILLION
    rounds: int = 5
    crowd: int = 1000
    """Adapters that are registered in the row `many`."""
    resident: int = 32
    """Of which the device has room for as many, by their mean size."""
    requests: int = 96
    """In one round of `many`."""
    peft: int = 64
    """Adapters that PEFT holds when a new one comes."""
    prompt_tokens: int = 128
    output_tokens: int = 64
    layers: int = 4
    """Of the linears in the row `gather`."""


def tiny(rounds: int) -> Scale:
    return Scale(SMALL, rounds, crowd=40, resident=6, requests=24, peft=10, prompt_tokens=16, output_tokens=8, layers=1)


def medians(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """One call of each side to warm up, then `rounds` of each in turn."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    for _ in range(rounds):
        for name, call in sides.items():
            measured[name].append(call())
    return {name: statistics.median(values) for name, values in measured.items()}


def median_ratio(one: Callable[[], float], other: Callable[[], float], pairs: int) -> float:
    """one / other, the median of pairs of neighbours in time, each side first in turn: of two that are nearly alike,
    what the machine does meanwhile is more than what tells them apart."""
    one(), other()
    ratios = []
    for pair in range(pairs):
        if pair % 2:
            second = other()
            ratios.append(one() / second)
        else:
            ratios.append(one() / other())
    return statistics.median(ratios)
