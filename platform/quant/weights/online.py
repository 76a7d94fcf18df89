"""Quantizing a float checkpoint as it is loaded: round to nearest, a linear at a time, nothing calibrated.

AWQ looks at activations: the engine quantizes the checkpoint at the first start, and what is loaded is the result.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch

from ..config.online_words import AWQ, NONE, online_words
from .rounding import IntegerGrid, round_to_float8, round_to_integers
from .weights import Float8Inputs, Weight

FLOAT8: Final = "fp8"
LINEARS: Final = (NONE, "int4", "int8", FLOAT8, AWQ)
HEADS: Final = (NONE, "int8")
GROUPS: Final = (128, 64, 32)
"""Inputs that share a scale in 4 bits: the first of these that divides them, else all of an output's."""


@dataclass(frozen=True, slots=True)
class OnlineQuantization:
    """What the linears of the layers and the head become."""

    linears: str = NONE
    head: str = NONE

    def __post_init__(self) -> None:
        """ValueError for a word that is not supported."""
        for name, word, known in (("quantization", self.linears, LINEARS), ("head_quantization", self.head, HEADS)):
            if word not in known:
                raise ValueError(f"{name} {word!r} is not supported; use {', '.join(known)}")

    @property
    def casts_activations(self) -> bool:
        """Whether linears are to read float8, on devices that multiply it."""
        return self.linears == FLOAT8

    @property
    def words(self) -> str:
        """For the start-up box; empty where nothing is quantized."""
        return online_words(self.linears, self.head)

    def linear(self, weight: Weight, name: str = "a linear") -> Weight:
        """A linear's weight as it is served. ValueError for one that is quantized already, or holds no numbers."""
        if self.linears == AWQ:
            assert not isinstance(weight, torch.Tensor), "not of the checkpoint that AWQ wrote"
            return weight
        if not isinstance(weight, torch.Tensor):
            self.refuse_quantized()
        return _rounded(weight, self.linears, name)

    def refuse_quantized(self) -> None:
        """For a checkpoint that is quantized already: ValueError where floats are to be quantized."""
        if self.linears != NONE:
            raise ValueError(f"the checkpoint is quantized already; serve it without quantization {self.linears}")

    def head_weight(self, weight: Weight, name: str = "the head") -> Weight:
        """A head that is quantized already stays as it is."""
        return _rounded(weight, self.head, name)


def _rounded(weight: Weight, scheme: str, name: str) -> Weight:
    if scheme == NONE or not isinstance(weight, torch.Tensor):
        return weight
    try:
        return _nearest(weight, scheme)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _nearest(weight: torch.Tensor, scheme: str) -> Weight:
    if scheme == FLOAT8:
        return replace(round_to_float8(weight), inputs=Float8Inputs())
    bits = int(scheme.removeprefix("int"))
    group = next((size for size in GROUPS if weight.shape[1] % size == 0), None) if bits == 4 else None
    return round_to_integers(weight, IntegerGrid(bits=bits, symmetric=bits == 8), group)
