"""What calibration saw at the input of one or more linears. Shapes: T rows (tokens), in inputs."""

from typing import Final

import torch

SAMPLED_ROWS: Final = 512
"""Enough to compare candidates by; memory of one layer at most for any linear."""


class InputStatistics:
    """Mean magnitudes over all rows, some of the rows themselves, and on demand the Hessian."""

    def __init__(self, inputs: int, expected_rows: int, with_hessian: bool = False) -> None:
        """`expected_rows`: how many will come in all; every so-manieth of them is kept."""
        self._stride = max(1, -(-expected_rows // SAMPLED_ROWS))
        self._count = 0
        self._magnitudes = torch.zeros(inputs, dtype=torch.float64)
        self._sampled: list[torch.Tensor] = []
        self._products = torch.zeros(inputs, inputs) if with_hessian else None

    def add(self, x: torch.Tensor) -> None:
        """x [T, in], float32."""
        assert x.shape[1] == len(self._magnitudes)
        self._magnitudes += x.abs().sum(0, dtype=torch.float64).cpu()
        first = -self._count % self._stride
        self._sampled.append(x[first :: self._stride].clone())
        self._count += len(x)
        if self._products is not None:
            self._products = self._products.to(x.device).addmm_(x.T, x)

    @property
    def num_rows(self) -> int:
        return self._count

    @property
    def magnitudes(self) -> torch.Tensor:
        """[in] float32: the mean of |x|."""
        return (self._magnitudes / self._count).float()

    @property
    def rows(self) -> torch.Tensor:
        """[about SAMPLED_ROWS or fewer, in], evenly spread over what came."""
        return torch.cat(self._sampled)

    @property
    def hessian(self) -> torch.Tensor:
        """[in, in] float32: 2 / T * sum of x x', the mean squared error's second derivative by a row of weights."""
        assert self._products is not None, "not asked for when it was made"
        return self._products * (2 / self._count)
