"""Whether weights are numbers: a single one that is none makes every answer of its model none."""

import math

import torch


def is_finite(weight: torch.Tensor) -> bool:
    """Of floats, in one pass over them and without a copy."""
    lowest, highest = torch.aminmax(weight)  # both are NaN where any is
    return math.isfinite(lowest.item()) and math.isfinite(highest.item())


def finite_floats(name: str, stored: torch.Tensor, dtype: torch.dtype, copy: bool = False) -> torch.Tensor:
    """The tensor `name` in `dtype`. ValueError for values that are no finite numbers there."""
    floats = stored.to(dtype, copy=copy)
    if is_finite(floats):
        return floats
    check_finite(stored, name)
    wider = "bfloat16" if dtype == torch.float16 else "float32"
    raise ValueError(
        f"{name} holds numbers up to {stored.abs().max().item():g}, and {str(dtype).removeprefix('torch.')} ends at "
        f"{torch.finfo(dtype).max:g}; choose the dtype {wider}"
    )


def check_finite(weight: torch.Tensor, name: str = "the weight") -> None:
    """ValueError unless all of the floats are numbers."""
    if not is_finite(weight):
        wrong = int((~weight.isfinite()).sum())
        raise ValueError(f"{name} holds NaN or infinity in {wrong} of {weight.numel()} places; repair the checkpoint")
