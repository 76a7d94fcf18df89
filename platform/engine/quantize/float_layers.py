"""The layers of a float checkpoint, read one at a time."""

import torch

from ..model.loader import DERIVED, Checkpoint


def stored_layer(checkpoint: Checkpoint, layer: int) -> dict[str, torch.Tensor]:
    """The layer's tensors as they are stored, by name within the layer: self_attn.q_proj.weight."""
    prefix = layer_prefix(layer)
    names = [name for name in tensor_names(checkpoint) if name.startswith(prefix)]
    return {name.removeprefix(prefix): checkpoint.tensor(name) for name in names}


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def tensor_names(checkpoint: Checkpoint) -> list[str]:
    """What counts, once `verify` found nothing unexpected: all but derived tensors of old checkpoints."""
    return [name for name in checkpoint if not name.endswith(DERIVED)]
