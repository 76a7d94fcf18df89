"""float8 weights times activations cast to float8, in torch's scaled product: the CUDA scheme for checkpoints made for
it, on devices that have float8 matrix units. Activations come in bfloat16, cast by whoever made them or here.
"""

from typing import Any, Self

import torch

from ..weights.parts import Parts
from ..weights.weights import Float8Weight, IntegerWeight, Weight
from .cuda_codes import scales_of_rows
from .packed import PackedLinear
from .scaled_products import MULTIPLE, multiply_rows
from .scheme import Float8Rows, LinearMethod


def reads_float8(weight: IntegerWeight | Float8Weight) -> bool:
    """Whether this scheme takes the weight: it is meant for such inputs, and a row of it has one scale."""
    if not isinstance(weight, Float8Weight) or weight.inputs is None or weight.scales.shape[1] > 1:
        return False
    return not any(size % MULTIPLE for size in weight.shape)


class CudaScaledFloat8Linear:
    inner: tuple[LinearMethod, ...] = ()

    def __init__(
        self,
        in_features: int,
        out_features: tuple[int, ...],
        device: torch.device | None = None,
        input_scale: float | None = None,
    ) -> None:
        """`input_scale`: as of Float8Inputs."""
        self.in_features = in_features
        self.out_features = out_features
        self.input_scale = input_scale
        self._device = device
        self._parts = Parts(in_features, out_features)
        self._part_scales: dict[int, torch.Tensor] = {}
        self._weight = torch.empty(0)
        self._scales = torch.empty(0)
        """[1, out] float32."""
        self._bias: torch.Tensor | None = None

    def load(self, part: int, weight: Weight, bias: torch.Tensor | None) -> None:
        """Raises ValueError for scales that differ along the inputs."""
        assert isinstance(weight, Float8Weight), "other weights are another scheme's"
        if weight.scales.shape[1] > 1:
            raise ValueError(
                f"part {part} of the linear has {weight.scales.shape[1]} scales a row, a scaled product takes 1"
            )
        self._parts.add(part, weight.values, bias)
        self._part_scales[part] = scales_of_rows(weight)

    def finish(self) -> None:
        self._weight = self._parts.weight(torch.float8_e4m3fn, self._device)
        self._bias = self._parts.bias(torch.bfloat16, self._device)
        scales = torch.cat([self._part_scales[part] for part in range(len(self.out_features))])
        self._scales = scales.T.contiguous().to(self._device)
        del self._parts, self._part_scales

    def packed(self) -> PackedLinear:
        """Of a calibrated scale, which floats that are rounded here have not, nothing is stored."""
        assert self.input_scale is None
        arrays = {"weight": self._weight, "scales": self._scales} | ({} if self._bias is None else {"bias": self._bias})
        return PackedLinear(type(self).__name__, self.in_features, self.out_features, arrays=arrays)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        method, arrays = cls(packed.in_features, packed.out_features), packed.arrays
        method._weight, method._scales, method._bias = arrays["weight"], arrays["scales"], arrays.get("bias")
        del method._parts, method._part_scales
        return method

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        from ..kernels.cuda.cast import cast_rows

        return self.apply_cast(cast_rows(x.contiguous(), self.input_scale))

    def apply_cast(self, x: Float8Rows) -> torch.Tensor:
        values, scales = x
        if not len(values):
            return torch.empty(0, sum(self.out_features), dtype=torch.bfloat16, device=values.device)
        return multiply_rows(values, scales, self._weight, self._scales, self._bias)

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self._weight[:, first:last].T.float() * self._scales

    def bias(self) -> torch.Tensor:
        zeros = torch.zeros(sum(self.out_features), device=self._weight.device)
        return zeros if self._bias is None else self._bias.float()

    def weight_bytes(self) -> int:
        tensors = [self._weight, self._scales] + ([] if self._bias is None else [self._bias])
        return sum(tensor.nbytes for tensor in tensors)
