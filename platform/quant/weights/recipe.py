"""Recipe: how `loraplex quantize` treats every linear of a model."""

from dataclasses import dataclass
from typing import Final

import torch

from .rounding import IntegerGrid, round_to_float8, round_to_integers
from .weights import Float8Weight, IntegerWeight

SCHEMES: Final = ("awq", "gptq", "int8", "fp8")
GROUP_SIZE: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    scheme: str
    """One of SCHEMES."""
    scale_dtype: torch.dtype
    """What the checkpoint keeps scales in."""
    grid: IntegerGrid | None
    """None: float8."""
    group_size: int | None
    """Consecutive inputs that share a scale, None for all of an output's."""
    fold: bool
    """AWQ: scale inputs too, and divide what makes them. Linears then read other inputs than before."""
    activation_order: bool
    """GPTQ: columns that matter most first."""

    @property
    def reads_activations(self) -> bool:
        return self.scheme in ("awq", "gptq")

    def nearest(self, weight: torch.Tensor) -> IntegerWeight | Float8Weight:
        """`weight` [out, in] rounded to nearest in this form. ValueError as in rounding.py."""
        if self.grid is None:
            return round_to_float8(weight, self.scale_dtype)
        return round_to_integers(weight, self.grid, self.group_size)


def choose_recipe(
    scheme: str,
    scale_dtype: torch.dtype,
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    fold: bool | None = None,
    activation_order: bool | None = None,
) -> Recipe:
    """The recipe of a scheme; None is its default. ValueError for a choice that the scheme does not have."""
    if scheme not in SCHEMES:
        raise ValueError(f"the scheme {scheme!r} is not known; known are {', '.join(SCHEMES)}")
    grouped = scheme in ("awq", "gptq")
    _refuse("--group-size", group_size is not None and not grouped, scheme, "awq and gptq")
    _refuse("--symmetric", symmetric is not None and not grouped, scheme, "awq and gptq")
    _refuse("--fold", fold is not None and scheme != "awq", scheme, "awq")
    _refuse("--activation-order", activation_order is not None and scheme != "gptq", scheme, "gptq")
    grid = IntegerGrid(
        bits=4 if grouped else 8, symmetric=scheme != "awq" if symmetric is None else symmetric, scale_dtype=scale_dtype
    )
    return Recipe(
        scheme=scheme,
        scale_dtype=scale_dtype,
        grid=None if scheme == "fp8" else grid,
        group_size=(group_size or GROUP_SIZE) if grouped else None,
        fold=scheme == "awq" if fold is None else fold,
        activation_order=activation_order is not False and scheme == "gptq",
    )


def _refuse(option: str, wrong: bool, scheme: str, schemes: str) -> None:
    if wrong:
        raise ValueError(f"{option} means nothing for the scheme {scheme}: it is for {schemes}. Leave it out")
