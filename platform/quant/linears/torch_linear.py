"""torch's own linear, for any device and dtype: the portable scheme."""

import torch
import torch.nn.functional as F

from ..weights.parts import Parts


class TorchLinear:
    def __init__(
        self, in_features: int, out_features: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self._dtype = dtype
        self._device = device
        self._parts = Parts(in_features, out_features)
        self._weight = torch.empty(0)
        self._bias: torch.Tensor | None = None

    def load(self, part: int, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._parts.add(part, weight, bias)

    def finish(self) -> None:
        self._weight = self._parts.weight(self._dtype, self._device)
        self._bias = self._parts.bias(self._dtype, self._device)
        del self._parts

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)

    def arrays(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight [out, in] and bias [out], as they are multiplied."""
        return self._weight, self._bias

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self._weight[:, first:last].T.float()

    def bias(self) -> torch.Tensor:
        zeros = torch.zeros(sum(self.out_features), device=self._weight.device)
        return zeros if self._bias is None else self._bias.float()

    def weight_bytes(self) -> int:
        return self._weight.nbytes + (self._bias.nbytes if self._bias is not None else 0)
