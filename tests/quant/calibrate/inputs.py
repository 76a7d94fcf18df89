"""A weight and inputs as calibration meets them: a few channels far larger than others, channels that go together."""

import torch

from loraplex.quant.calibrate.activations import InputStatistics


def outlier_case(
    seed: int = 0, outputs: int = 48, inputs: int = 64, rows: int = 512
) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [out, in] and x [T, in]."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(inputs, inputs, generator=generator) / inputs**0.5 + torch.eye(inputs)
    x = torch.randn(rows, inputs, generator=generator) @ mix
    x[:, ::13] *= 20
    return torch.randn(outputs, inputs, generator=generator), x


def statistics(x: torch.Tensor, with_hessian: bool = False) -> InputStatistics:
    seen = InputStatistics(x.shape[1], len(x), with_hessian)
    for part in x.split(100):
        seen.add(part)
    return seen


def output_error(weight: torch.Tensor, other: torch.Tensor, x: torch.Tensor) -> float:
    """|x W' - x V'| / |x W'|, in float64."""
    right = x.double() @ weight.double().T
    return float((x.double() @ other.double().T - right).norm() / right.norm())
