"""The layers of a float checkpoint, read one at a time."""

from collections.abc import Callable, Iterator, Mapping

import torch

from loraplex.quant.weights.finite import check_finite

from ..model.description.spec import ModelSpec
from ..model.expected import layer_path
from ..model.loader import DERIVED, Checkpoint


class OnDemand(Mapping[str, torch.Tensor]):
    """Tensors that are made each time they are asked for: memory holds those that a reader keeps."""

    def __init__(self, makers: Mapping[str, Callable[[], torch.Tensor]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def stored_layer(spec: ModelSpec, checkpoint: Checkpoint, layer: int) -> dict[str, torch.Tensor]:
    """The layer's tensors in the dtypes they are stored in, weights of linears [out, in], by name within the layer:
    self_attn.q_proj.weight. ValueError for NaN and infinity."""
    prefix = layer_path(spec, layer)
    names = [name for name in tensor_names(checkpoint) if name.startswith(prefix)]
    tensors = {name.removeprefix(prefix): stored_floats(checkpoint, name) for name in names}
    turned = {f"{linear.path}.weight" for linear in spec.layers[layer].linears() if linear.is_transposed}
    return {name: tensor.T if name in turned else tensor for name, tensor in tensors.items()}


def stored_floats(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The tensor as it is stored. ValueError for NaN and infinity."""
    stored = checkpoint.tensor(name)
    check_finite(stored, name)
    return stored


def tensor_names(checkpoint: Checkpoint) -> list[str]:
    """What counts, once `verify` found nothing unexpected: all but derived tensors of old checkpoints."""
    return [name for name in checkpoint if not name.endswith(DERIVED)]
