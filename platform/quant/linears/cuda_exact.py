"""Floats of 32 bits on a CUDA device, whose results are the same bits in every batch."""

import torch

from .torch_linear import TorchLinear


class CudaExactLinear(TorchLinear):
    def __init__(self, in_features: int, out_features: tuple[int, ...], device: torch.device | None = None) -> None:
        super().__init__(in_features, out_features, torch.float32, device)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        from ..kernels.cuda.exact import multiply_exact

        return multiply_exact(x.contiguous(), *self.arrays())
