"""The ends of the plain forward: from token ids to the first layer, and from the last one to logits. In float32.

Shapes: S sequences, L tokens each, C hidden size, E size of a token's row, V tokens of the vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..model.description.spec import HeadSpec, ModelSpec
from ..model.loader import Checkpoint
from .plain.forward import LayerTensors, normed, plain_linear

Linear = Callable[[str, torch.Tensor], torch.Tensor]
"""The linear of that path in the model on x [S, L, in]."""


def embed_tokens(
    spec: ModelSpec,
    checkpoint: Checkpoint,
    embedding: torch.Tensor,
    token_ids: torch.Tensor,
    linear: Linear | None = None,
) -> torch.Tensor:
    """token_ids [S, L], embedding [V, E] in any float dtype -> [S, L, C]. `linear`: None: as the checkpoint has it."""
    own = spec.embedding
    x = F.embedding(token_ids, embedding).float() * own.scale
    if own.projection is not None:
        path = own.projection.path
        x = F.linear(x, checkpoint.tensor(f"{path}.weight").float()) if linear is None else linear(path, x)
    if own.positions is None:
        return x
    first = own.position_offset
    return x + checkpoint.tensor(f"{own.positions}.weight")[first : first + token_ids.shape[1]].float()


def token_inputs(
    spec: ModelSpec, checkpoint: Checkpoint, linear: Linear, token_ids: torch.Tensor, x: torch.Tensor
) -> torch.Tensor | None:
    """What each layer gets of each token, [layers, S, L, P], of what the first layer reads, x [S, L, C]; None where
    layers get nothing."""
    own = spec.token_inputs
    if own is None:
        return None
    rows = F.embedding(token_ids, checkpoint.tensor(f"{own.rows.path}.weight")).float() * own.rows.scale
    projected = _by_layer(linear(own.projection.path, x) * own.projection_scale, own.size)
    weight = {name: checkpoint.tensor(name).float() for name in (f"{own.norm.path}.weight",)}
    return (normed(weight, own.norm, projected) + _by_layer(rows, own.size)) * own.scale


def _by_layer(x: torch.Tensor, size: int) -> torch.Tensor:
    """[S, L, layers * P] -> [layers, S, L, P]."""
    return torch.stack(torch.split(x, size, dim=-1))


@dataclass(frozen=True, slots=True)
class End:
    """What is done to the stream behind the last layer."""

    spec: ModelSpec
    tensors: LayerTensors
    """Of the last norm and of the projection, by name, float32, on the device to compute on."""

    @staticmethod
    def read(spec: ModelSpec, checkpoint: Checkpoint, device: torch.device) -> "End":
        projection = None if spec.head is None else spec.head.projection
        paths = [module.path for module in (spec.norm, projection) if module is not None]
        names = [f"{path}.{part}" for path in paths for part in ("weight", "bias")]
        floats = {name: checkpoint.tensor(name).to(device, torch.float32) for name in names if name in checkpoint}
        return End(spec, floats)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., C] of the stream -> [..., E], what the head multiplies."""
        x = normed(self.tensors, self.spec.norm, x)
        projection = None if self.spec.head is None else self.spec.head.projection
        return x if projection is None else plain_linear(self.tensors, projection.path, x)

    def logits(self, products: torch.Tensor) -> torch.Tensor:
        """Of the head's products [..., V]."""
        assert self.spec.head is not None
        return finish_logits(self.spec.head, products)


def finish_logits(head: HeadSpec, products: torch.Tensor) -> torch.Tensor:
    logits = products * head.scale
    return logits if head.soft_cap is None else torch.tanh(logits / head.soft_cap) * head.soft_cap
