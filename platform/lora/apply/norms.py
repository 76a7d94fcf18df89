"""replace_norms: a norm computed again for the tokens whose adapters bring its weight."""

import torch
import torch.nn.functional as F

from .batch import LoraBatch


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
        own = norm_vectors(batch, slot, layer, kind, normed.shape[1])
        if own is not None:
            members, (weight, bias) = slots == slot, own
            rows = residual[members].float()
            if is_layer_norm:
                normed[members] = F.layer_norm(rows, weight.shape, weight, bias, eps).to(normed.dtype)
            else:
                normed[members] = F.rms_norm(rows, weight.shape, weight, eps).to(normed.dtype)
    return normed


def norm_weight(batch: LoraBatch, slot: int, layer: int, kind: str, size: int) -> torch.Tensor | None:
    """[size] float32; None where the slot's adapter, if any, leaves the norm as it is."""
    own = norm_vectors(batch, slot, layer, kind, size)
    return None if own is None else own[0]


def norm_vectors(batch: LoraBatch, slot: int, layer: int, kind: str, size: int) -> torch.Tensor | None:
    """Weight as the checkpoint has it, and bias, [2, size] float32; the bias of a norm that has none is zero. None
    where the slot's adapter, if any, leaves the norm as it is."""
    table = batch.table
    page = int(table.vectors[slot, table.row(kind)]) if slot >= 0 else -1
    if page < 0:
        return None
    start = page + table.ordinal(kind, layer) * 2 * size
    return table.floats[start : start + 2 * size].view(2, size)
