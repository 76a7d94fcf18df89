"""bfloat16 weights and activations, packed by oneDNN: the CPU scheme where bf16 instructions exist.

oneDNN chooses its blocking by the number of rows, so a row's last bits may depend on how many others are in x.
"""

import torch

from .parts import Parts

PACKED_FOR_ROWS = 16


class PackedBfloat16Linear:
    def __init__(self, in_features: int, out_features: tuple[int, ...]) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self._parts = Parts(in_features, out_features)
        self._weight = torch.empty(0)
        self._bias: torch.Tensor | None = None

    def load(self, part: int, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._parts.add(part, weight, bias)

    def finish(self) -> None:
        weight = self._parts.weight(torch.bfloat16)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        self._bias = self._parts.bias(torch.bfloat16)
        del self._parts

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y

    def columns(self, first: int, last: int) -> torch.Tensor:
        """The answers to unit vectors: oneDNN keeps its order of the weights to itself."""
        unit_vectors = torch.zeros(last - first, self.in_features, dtype=torch.bfloat16)
        unit_vectors.diagonal(first).fill_(1)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(unit_vectors, self._weight, None, "none", [], "")
        return y.float()

    def bias(self) -> torch.Tensor:
        return torch.zeros(sum(self.out_features)) if self._bias is None else self._bias.float()

    def weight_bytes(self) -> int:
        rows = sum(self.out_features)
        return 2 * rows * (self.in_features + (self._bias is not None))
