"""Weights of 4 or 8 bits (integers by groups, float8 by blocks) times 16-bit activations: the CUDA scheme that reads
each weight as it is stored and leaves the activations as they are.
"""

from typing import Any, Self

import torch

from ..kernels.cuda.layout import ARRAYS, NUMBERS, Codes, PackedWeight, pack, unpack_columns
from ..weights.parts import Parts
from ..weights.weights import Weight
from .cuda_codes import merge_alike, to_codes
from .packed import PackedLinear
from .scheme import LinearMethod


class CudaPackedLinear:
    inner: tuple[LinearMethod, ...] = ()

    def __init__(
        self, in_features: int, out_features: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        """`dtype`: of the activations, torch.bfloat16 or torch.float16."""
        self.in_features = in_features
        self.out_features = out_features
        self._dtype = dtype
        self._device = device
        self._parts = Parts(in_features, out_features)
        self._codes: dict[int, Codes] = {}
        self._weights: list[PackedWeight] = []
        """One for neighbouring parts that are stored alike."""
        self._bias: torch.Tensor | None = None

    def load(self, part: int, weight: Weight, bias: torch.Tensor | None) -> None:
        """Raises ValueError for what no kernel takes."""
        assert not isinstance(weight, torch.Tensor), "float weights are another scheme's"
        try:
            self._codes[part] = to_codes(weight)
        except ValueError as error:
            raise ValueError(f"part {part} of the linear has {error}") from error
        self._parts.add(part, self._codes[part].values, bias)

    def finish(self) -> None:
        assert len(self._codes) == len(self.out_features), "finish() before every part was loaded"
        parts = [self._codes[part] for part in range(len(self.out_features))]
        self._weights = [pack(codes, self._device) for codes in merge_alike(parts)]
        self._bias = self._parts.bias(self._dtype, self._device)
        del self._parts, self._codes

    def packed(self) -> PackedLinear:
        facts: dict[str, str | int] = {"dtype": str(self._dtype).removeprefix("torch."), "weights": len(self._weights)}
        arrays = {} if self._bias is None else {"bias": self._bias}
        for number, weight in enumerate(self._weights):
            facts |= {f"{name}{number}": getattr(weight, name) for name in NUMBERS}
            stored = {f"{name}{number}": getattr(weight, name) for name in ARRAYS}
            arrays |= {name: array for name, array in stored.items() if array is not None}
        return PackedLinear(type(self).__name__, self.in_features, self.out_features, facts, arrays)

    @classmethod
    def restored(cls, packed: PackedLinear, inner: tuple[Any, ...]) -> Self:
        facts, arrays = packed.facts, packed.arrays
        method = cls(packed.in_features, packed.out_features, getattr(torch, str(facts["dtype"])))
        for number in range(int(facts["weights"])):
            fields: dict[str, Any] = {name: facts[f"{name}{number}"] for name in NUMBERS}
            fields |= {name: arrays.get(f"{name}{number}") for name in ARRAYS}
            method._weights.append(PackedWeight(**fields))
        method._bias = arrays.get("bias")
        del method._parts, method._codes
        return method

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        from ..kernels.cuda.linear import linear

        x, y = x.contiguous(), torch.empty(len(x), sum(self.out_features), dtype=x.dtype, device=x.device)
        first = 0
        for weight in self._weights:
            last = first + weight.outputs
            inputs = x if weight.order is None else x.index_select(1, weight.order)
            linear(y[:, first:last], inputs, weight, None if self._bias is None else self._bias[first:last])
            first = last
        return y

    def arrays(self) -> tuple[list[PackedWeight], torch.Tensor | None]:
        """Weights, one below the other, and the bias [out], as they are multiplied."""
        return self._weights, self._bias

    def columns(self, first: int, last: int) -> torch.Tensor:
        return torch.cat([unpack_columns(weight, first, last) for weight in self._weights], 1)

    def bias(self) -> torch.Tensor:
        zeros = torch.zeros(sum(self.out_features), device=self._weights[0].codes.device)
        return zeros if self._bias is None else self._bias.float()

    def weight_bytes(self) -> int:
        return sum(weight.num_bytes() for weight in self._weights) + (0 if self._bias is None else self._bias.nbytes)
