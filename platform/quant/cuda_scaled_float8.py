"""float8 weights times activations cast to float8 token by token, in torch's scaled product: the CUDA scheme for
checkpoints made for it, on devices that have float8 matrix units.
"""

import torch

from .cuda_codes import scales_of_rows
from .parts import Parts
from .weights import Float8Weight, Weight

MULTIPLE = 16
"""Inputs and outputs of a scaled product come in multiples of this."""
LEAST_CAPABILITY = (9, 0)


def can_scale_rows(in_features: int, out_features: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this scheme takes a linear of this shape; its weights must have one block of inputs."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return False
    return dtype == torch.bfloat16 and not in_features % MULTIPLE and not sum(out_features) % MULTIPLE


class CudaScaledFloat8Linear:
    def __init__(self, in_features: int, out_features: tuple[int, ...], device: torch.device | None = None) -> None:
        self.in_features = in_features
        self.out_features = out_features
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

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        from .kernels.cuda.cast import cast_rows

        values, scales = cast_rows(x.contiguous())
        y: torch.Tensor = torch._scaled_mm(
            values, self._weight.T, scales, self._scales, self._bias, out_dtype=torch.bfloat16, use_fast_accum=False
        )
        return y

    def columns(self, first: int, last: int) -> torch.Tensor:
        return self._weight[:, first:last].T.float() * self._scales

    def bias(self) -> torch.Tensor:
        return torch.zeros(sum(self.out_features)) if self._bias is None else self._bias.float()

    def weight_bytes(self) -> int:
        tensors = [self._weight, self._scales] + ([] if self._bias is None else [self._bias])
        return sum(tensor.nbytes for tensor in tensors)
