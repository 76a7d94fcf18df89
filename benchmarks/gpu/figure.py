"""What a figure is, where it is measured, and the check that comes before its speed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from .clock import Call, Clock
from .errors import Unsupported, WrongResult
from .size import Size

__all__ = ["Unsupported", "WrongResult"]
TOLERANCE: Final = 0.02
"""Largest difference over the largest result, where 16-bit numbers are rounded once or twice."""
FLOAT8_TOLERANCE: Final = 0.1
"""Where activations have the 3 bits of float8."""


@dataclass(frozen=True, eq=False)
class Stage:
    """Where figures are measured. Equal only to itself, so that functions can keep what they made for it."""

    device: torch.device
    clock: Clock
    size: Size

    def random(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Normal, in the activations' dtype."""
        return torch.randn(shape, device=self.device, dtype=self.size.dtype) * scale

    def copies(self, num_bytes: int) -> int:
        """How many tensors of that size calls take in turn, so that each comes from memory."""
        return -(-self.size.cold_bytes // num_bytes)


@dataclass(frozen=True)
class Figure:
    what: str
    unit: str
    goal: float | None
    measure: Callable[[Stage], float] | None
    """Raises WrongResult before any speed is measured; None: nothing measures it yet, and `note` says why."""
    at_least: bool = True
    note: str = ""
    seconds: float = 0.0
    """About what it takes; it is not begun when its part has less left."""


def require_close(actual: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    """Raises WrongResult unless no number is off by more than `tolerance` times the largest wanted one."""
    wanted = wanted.float()
    off = float((actual.float() - wanted).abs().max() / wanted.abs().max())
    if not off <= tolerance:
        raise WrongResult(f"off by {off:.3g} of the largest, {tolerance:g} is allowed")


def require_same(actual: torch.Tensor, again: torch.Tensor) -> None:
    """Raises WrongResult unless both are the same bits."""
    if not torch.equal(actual, again):
        raise WrongResult("two runs of the same call give other bits")


def require_call(call: Callable[[], torch.Tensor], wanted: torch.Tensor, tolerance: float) -> None:
    """Both of the above, of a call that is made twice."""
    actual = call()
    require_close(actual, wanted, tolerance)
    require_same(actual, call())


def seconds_of(stage: Stage, calls: Sequence[Call]) -> float:
    return stage.clock.seconds({"": calls})[""]
