"""DeltaNetBackend: the small interface between a recurrent layer and the states of all sequences. One file per device.

Shapes: T new tokens, K channels of the convolution, H value heads of size D, Q key heads of size E.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from ..batch import Batch


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeltaWeights:
    """Of one layer, without its linears."""

    conv: torch.Tensor
    """[taps, K] float32: the oldest input's tap first, one column a channel."""
    decay: torch.Tensor
    """[H] float32: exp(A_log)."""
    dt_bias: torch.Tensor
    """[H] float32."""
    norm: torch.Tensor
    """[D] float32."""
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Projections:
    """What the layer's linears made of its input."""

    qkv: torch.Tensor
    """[T, K]: query heads, key heads, value heads."""
    gate: torch.Tensor
    """[T, H D]: z."""
    beta: torch.Tensor
    """[T, H]: b, before its sigmoid."""
    step: torch.Tensor
    """[T, H]: a, before dt_bias and softplus."""


class DeltaNetBackend(Protocol):
    """Owns the state tensors of all recurrent layers."""

    def mix(self, layer: int, projections: Projections, weights: DeltaWeights, batch: Batch) -> torch.Tensor:
        """[T, H D], normed and gated, for the output linear. `layer` counts recurrent layers alone.

        Each sequence goes on from the state in its slot, or from zero where its first token is at position 0, and
        leaves its state there; batch.states says which are kept elsewhere on the way. What a sequence gets depends
        neither on how it was cut into steps nor on its neighbours.
        """

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole states, source slot to destination, in every layer. No slot is both."""

    def state_bytes(self) -> int:
        """Bytes of the state tensors."""
