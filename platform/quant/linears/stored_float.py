"""Weights as the checkpoint stores them (bfloat16, float16 or float32), arithmetic in fp32: the CPU scheme, half the
memory traffic of fp32 weights. A row's result is the same bits whatever other rows are in x.
"""

from typing import Any, Self

import numpy as np
import torch

from ..kernels.instructions.tile import PANEL
from ..kernels.layouts.panels import pack_in_blocks, pack_weight, unpack_columns
from ..kernels.panel_linear import panel_linear, panels_address, scratch_size
from ..weights.parts import Parts
from .packed import PackedLinear
from .scheme import LinearMethod

BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16, torch.float32: torch.float32}
"""How the kernel tells the dtypes apart."""


class StoredFloatLinear:
    inner: tuple[LinearMethod, ...] = ()

    def __init__(self, in_features: int, out_features: tuple[int, ...], storage: torch.dtype) -> None:
        """`storage`: torch.bfloat16, torch.float16 or torch.float32."""
        self.in_features = in_features
        self.out_features = out_features
        self._storage = storage
        self._rows = sum(out_features)
        self._parts = Parts(in_features, out_features)
        self.panels = np.empty(0, np.float32)
        """The weight as panel_linear takes it, one-dimensional."""
        self.biases = np.zeros(-(-self._rows // PANEL) * PANEL, np.float32)
        """To whole panels, as the kernels read them."""
        self._workers = torch.get_num_threads()

    def load(self, part: int, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._parts.add(part, weight, bias)

    def finish(self) -> None:
        self.panels = pack_in_blocks(self._rows, self._pack)
        bias = self._parts.bias(torch.float32)
        if bias is not None:
            self.biases[: self._rows] = bias.numpy()
        del self._parts

    def packed(self) -> PackedLinear:
        arrays = {"panels": torch.from_numpy(self.panels), "biases": torch.from_numpy(self.biases)}
        facts: dict[str, str | int] = {"storage": str(self._storage).removeprefix("torch.")}
        return PackedLinear(type(self).__name__, self.in_features, self.out_features, facts, arrays)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        method = cls(packed.in_features, packed.out_features, getattr(torch, str(packed.facts["storage"])))
        method.panels, method.biases = (packed.arrays[name].numpy() for name in ("panels", "biases"))
        del method._parts
        return method

    def _pack(self, first: int, last: int) -> np.ndarray:
        return pack_weight(self._parts.rows(first, last, self._storage).view(BITS[self._storage]).numpy())

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32 and x.shape[1] == self.in_features
        x = x.contiguous()
        y = torch.empty(x.shape[0], self._rows)
        scratch = torch.empty(scratch_size(*x.shape))
        panel_linear(
            self.panels,
            self.biases.ctypes.data,
            x.data_ptr(),
            0,
            scratch.data_ptr(),
            y.data_ptr(),
            len(x),
            self._rows,
            self.in_features,
            self._workers,
        )
        return y

    def where(self) -> list[int]:
        """As any_linear takes it."""
        return [self.panels.ctypes.data, self.biases.ctypes.data, panels_address(self.panels.dtype), 0, 0, 0, 0, 0]

    def scratch_bytes(self, rows: int) -> int:
        """That any_linear needs for so many rows."""
        return 4 * scratch_size(rows, self.in_features)

    def columns(self, first: int, last: int) -> torch.Tensor:
        bits = unpack_columns(self.panels, self._rows, first, last)
        return torch.from_numpy(bits).view(self._storage).float()

    def bias(self) -> torch.Tensor:
        return torch.from_numpy(self.biases[: self._rows])

    def weight_bytes(self) -> int:
        return self.panels.nbytes + self.biases.nbytes
