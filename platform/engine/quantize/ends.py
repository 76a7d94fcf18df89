"""The ends of the plain forward: from token ids to the first layer, and from the last one to logits. In float32.

Shapes: S sequences, L tokens each, C hidden size, E size of a token's row, V tokens of the vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..model.description.spec import HeadSpec, LinearSpec, ModelSpec
from ..model.loader import Checkpoint
from .forward import normed


def embed_tokens(
    spec: ModelSpec, checkpoint: Checkpoint, embedding: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """token_ids [S, L], embedding [V, E] in any float dtype -> [S, L, C]."""
    own = spec.embedding
    x = _project(own.projection, checkpoint, F.embedding(token_ids, embedding).float() * own.scale)
    if own.positions is None:
        return x
    first = own.position_offset
    return x + checkpoint.tensor(f"{own.positions}.weight")[first : first + token_ids.shape[1]].float()


@dataclass(frozen=True, slots=True)
class End:
    """What is done to the stream behind the last layer."""

    spec: ModelSpec
    norm: dict[str, torch.Tensor]
    """Weight and bias of the last norm by name, on the device to compute on."""
    projection: torch.Tensor | None = None
    """[E, C]"""

    @staticmethod
    def read(spec: ModelSpec, checkpoint: Checkpoint, device: torch.device) -> "End":
        parts = [] if spec.norm is None else [f"{spec.norm.path}.{part}" for part in ("weight", "bias")]
        norm = {name: checkpoint.tensor(name).to(device, torch.float32) for name in parts if name in checkpoint}
        own = spec.head.projection
        projection = None if own is None else checkpoint.tensor(f"{own.path}.weight").to(device, torch.float32)
        return End(spec, norm, projection)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., C] of the stream -> [..., E], what the head multiplies."""
        x = normed(self.norm, self.spec.norm, x)
        return x if self.projection is None else F.linear(x, self.projection)

    def logits(self, products: torch.Tensor) -> torch.Tensor:
        """Of the head's products [..., V]."""
        return finish_logits(self.spec.head, products)


def finish_logits(head: HeadSpec, products: torch.Tensor) -> torch.Tensor:
    logits = products * head.scale
    return logits if head.soft_cap is None else torch.tanh(logits / head.soft_cap) * head.soft_cap


def _project(spec: LinearSpec | None, checkpoint: Checkpoint, x: torch.Tensor) -> torch.Tensor:
    return x if spec is None else F.linear(x, checkpoint.tensor(f"{spec.path}.weight").float())
