"""LoraLinear: the one place where a base weight and the adapters meet. y = W x + b + scaling * B A x."""

from dataclasses import dataclass, field

import torch

from loraplex.quant.linears.scheme import Float8Reader, Float8Rows, LinearMethod

from ..batch import Batch
from .operations.operations import Casts, Operations, cpu_operations


@dataclass(slots=True)
class LoraLinear:
    """One group of one layer. Adapters read x as it is, before any quantization of activations."""

    method: LinearMethod
    layer: int
    kinds: tuple[str, ...]
    operations: Operations = field(default_factory=cpu_operations)
    casts: tuple[Casts, float | None] | None = field(init=False)
    """With which, and by which scale, whoever makes x is to cast it for the base; None: it is not."""
    _reader: Float8Reader | None = field(init=False)

    def __post_init__(self) -> None:
        self._reader = self.method if isinstance(self.method, Float8Reader) else None
        casts = None if self._reader is None else self.operations.casts
        self.casts = None if casts is None or self._reader is None else (casts, self._reader.input_scale)

    def apply(self, x: torch.Tensor, batch: Batch, cast: Float8Rows | None = None) -> torch.Tensor:
        """x [T, in], and the same as it was cast for the base -> [T, sum of the group's out_features]."""
        y = self.method.apply(x) if cast is None or self._reader is None else self._reader.apply_cast(cast)
        if batch.lora is not None:
            self.operations.add_lora(y, x, batch.lora, self.layer, self.kinds)
        return y
