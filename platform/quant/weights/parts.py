"""Parts: the checkpoint weights of one linear group, collected until they are packed."""

from collections.abc import Sequence

import torch


class Parts:
    """Weights and biases of parts fused along the output; a part without a bias counts as zeros."""

    def __init__(self, in_features: int, out_features: tuple[int, ...]) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self._weights: dict[int, torch.Tensor] = {}
        self._biases: dict[int, torch.Tensor] = {}

    def add(self, part: int, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Raises ValueError for a weight or bias of another shape than announced."""
        check_shapes(part, (self.out_features[part], self.in_features), tuple(weight.shape), bias)
        self._weights[part] = weight
        if bias is not None:
            self._biases[part] = bias

    def weight(self, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
        """[sum(out_features), in_features], rows in the order of the parts."""
        assert len(self._weights) == len(self.out_features), "finish() before every part was loaded"
        return torch.cat([self._weights[part].to(device, dtype) for part in range(len(self.out_features))])

    def rows(self, first: int, last: int, dtype: torch.dtype) -> torch.Tensor:
        """Some rows of `weight`."""
        assert len(self._weights) == len(self.out_features), "finish() before every part was loaded"
        return joined_rows([self._weights[part] for part in range(len(self.out_features))], first, last).to(dtype)

    def bias(self, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor | None:
        """[sum(out_features)], None when no part has one."""
        if not self._biases:
            return None
        zeros = [torch.zeros(rows, dtype=dtype, device=device) for rows in self.out_features]
        return torch.cat([self._biases.get(part, zero).to(device, dtype) for part, zero in enumerate(zeros)])


def joined_rows(parts: Sequence[torch.Tensor], first: int, last: int) -> torch.Tensor:
    """Rows `first` to `last` of the parts [out, in] one below the other; a view where one part has them all."""
    pieces, begin = [], 0
    for part in parts:
        piece = part[max(first - begin, 0) : max(last - begin, 0)]
        pieces += [piece] if len(piece) else []
        begin += len(part)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def check_shapes(part: int, expected: tuple[int, int], shape: tuple[int, ...], bias: torch.Tensor | None) -> None:
    """ValueError for a weight [out, in] or a bias [out] of another shape than `expected`."""
    if shape != expected:
        raise ValueError(f"part {part} of the linear has weight {list(shape)}, the model needs {list(expected)}")
    if bias is not None and tuple(bias.shape) != expected[:1]:
        raise ValueError(f"part {part} of the linear has bias {list(bias.shape)}, the model needs [{expected[0]}]")
