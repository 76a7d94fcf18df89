"""replace_norms: a norm computed again for the tokens whose adapters bring its weight."""

import torch
import torch.nn.functional as F

from .batch import KINDS, LoraBatch


def replace_norms(
    normed: torch.Tensor,
    residual: torch.Tensor,
    tokens: torch.Tensor,
    batch: LoraBatch | None,
    layer: int,
    kind: str,
    eps: float,
    is_layer_norm: bool = False,
) -> torch.Tensor:
    """normed and residual [N, C], rows of the tokens `tokens` [N]; changes normed in place where it has to, returns it.

    An adapter with norms is never summed with others: it is in place 0.
    """
    if batch is None or kind not in batch.changed:
        return normed
    slots = batch.token_slot[tokens, 0]
    for slot in set(slots.tolist()):
        weight = norm_weight(batch, slot, layer, kind, normed.shape[1])
        if weight is not None:
            members = slots == slot
            rows = residual[members].float()
            if is_layer_norm:
                bias = _part(batch, slot, layer, kind, normed.shape[1], 1)
                normed[members] = F.layer_norm(rows, weight.shape, weight, bias, eps).to(normed.dtype)
            else:
                normed[members] = F.rms_norm(rows, weight.shape, weight, eps).to(normed.dtype)
    return normed


def norm_weight(batch: LoraBatch, slot: int, layer: int, kind: str, size: int) -> torch.Tensor | None:
    """[size] float32; None where the slot's adapter, if any, leaves the norm as it is."""
    return _part(batch, slot, layer, kind, size, 0)


def _part(batch: LoraBatch, slot: int, layer: int, kind: str, size: int, part: int) -> torch.Tensor | None:
    """Weight (0) or bias (1)."""
    page = int(batch.table.vectors[slot, KINDS.index(kind)]) if slot >= 0 else -1
    return batch.table.floats[page + (layer * 2 + part) * size :][:size] if page >= 0 else None
