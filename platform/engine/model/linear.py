"""LoraLinear: the one place where a base weight and the adapters meet. y = W x + b + scaling * B A x."""

from dataclasses import dataclass, field
from typing import Final

import torch

from loraplex.quant.scheme import LinearMethod

from ..batch import Batch
from .operations import Operations, cpu_operations

GROUPS: Final = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
"""Linears of a layer that read the same activation and are one matrix product."""


@dataclass(slots=True)
class LoraLinear:
    """One group of one layer. Adapters read x as it is, before any quantization of activations."""

    method: LinearMethod
    layer: int
    kinds: tuple[str, ...]
    operations: Operations = field(default_factory=cpu_operations)

    def apply(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """x [T, in] -> [T, sum of the group's out_features]."""
        y = self.method.apply(x)
        if batch.lora is not None:
            self.operations.add_lora(y, x, batch.lora, self.layer, self.kinds)
        return y
