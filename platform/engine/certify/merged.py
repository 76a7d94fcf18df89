"""MergedAdapter: an adapter in the weights of the model it was trained on, in float32, as PEFT defines it.

It shares with the served path only what says which tensor is what (`lora.manifest`).
"""

from collections.abc import Callable, Iterable

import torch

from loraplex.lora.files.manifest import EMBEDDING, HEAD, ModuleLora, TensorInfo

ReadTensor = Callable[[str], torch.Tensor]
"""By its name in the file."""


class MergedAdapter:
    """Changes weights [out, in], biases [out] and norms of the base, in float32, to those of the adapted model."""

    def __init__(self, modules: Iterable[ModuleLora], read: ReadTensor) -> None:
        self._modules = {(module.layer, module.kind): module for module in modules}
        self._read = read

    @staticmethod
    def none() -> "MergedAdapter":
        """Leaves the base as it is."""
        tensors: dict[str, torch.Tensor] = {}
        return MergedAdapter((), tensors.__getitem__)

    def linear(
        self, layer: int, kind: str, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """weight [out, in] and bias [out], float32, of the base -> those of the adapted model."""
        module = self._modules.get((layer, kind))
        if module is None:
            return weight, bias
        if module.a is not None and module.b is not None:
            weight = weight + module.scaling * (self._tensor(module.b) @ self._tensor(module.a))
        for vector in module.vectors:
            values = self._tensor(vector.tensor).flatten()
            match vector.role:
                case "magnitude":
                    weight = weight * (values / weight.norm(dim=1))[:, None]
                case "bias":
                    bias = values
                case "lora_bias":
                    bias = module.scaling * values + (0 if bias is None else bias)
                case "gain":
                    weight, bias = weight * values[:, None], None if bias is None else bias * values
        return weight, bias

    def norm(
        self, layer: int, kind: str, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight and bias [C] of a norm, as they are stored."""
        module = self._modules.get((layer, kind))
        for vector in () if module is None else module.vectors:
            values = self._tensor(vector.tensor).flatten()
            weight, bias = (values, bias) if vector.role == "norm" else (weight, values)
        return weight, bias

    def embedding(self, weight: torch.Tensor) -> torch.Tensor:
        """[V, C] as it is stored -> float32 where the adapter changes it, with its tokens."""
        module = self._modules.get((0, EMBEDDING))
        if module is None:
            return weight
        return self.linear(0, EMBEDDING, self._with_rows(module, weight).T, None)[0].T  # a linear of unit vectors

    def head(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[V, C] as it is stored -> float32 where the adapter changes it, with its tokens, and a bias [V] if it has."""
        module = self._modules.get((0, HEAD))
        if module is None:
            return weight, None
        return self.linear(0, HEAD, self._with_rows(module, weight), None)

    def _with_rows(self, module: ModuleLora, weight: torch.Tensor) -> torch.Tensor:
        weight = weight.float()
        for part in module.rows:
            rows = self._tensor(part.tensor)
            if part.tokens is None:
                weight = rows
                continue
            added = max(0, max(part.tokens) + 1 - len(weight))
            weight = torch.cat([weight, torch.zeros(added, weight.shape[1])])
            weight[list(part.tokens)] = rows
        return weight

    def _tensor(self, info: TensorInfo) -> torch.Tensor:
        return self._read(info.name).float()
