"""The layers of a float checkpoint, read one at a time."""

from collections.abc import Callable, Iterator, Mapping

import torch

from loraplex.quant.weights.finite import check_finite

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


def stored_layer(checkpoint: Checkpoint, layer: int) -> dict[str, torch.Tensor]:
    """The layer's tensors as they are stored, by name within the layer: self_attn.q_proj.weight. ValueError for NaN and
    infinity."""
    prefix = layer_prefix(layer)
    names = [name for name in tensor_names(checkpoint) if name.startswith(prefix)]
    return {name.removeprefix(prefix): stored_floats(checkpoint, name) for name in names}


def stored_floats(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """The tensor as it is stored. ValueError for NaN and infinity."""
    stored = checkpoint.tensor(name)
    check_finite(stored, name)
    return stored


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def tensor_names(checkpoint: Checkpoint) -> list[str]:
    """What counts, once `verify` found nothing unexpected: all but derived tensors of old checkpoints."""
    return [name for name in checkpoint if not name.endswith(DERIVED)]
