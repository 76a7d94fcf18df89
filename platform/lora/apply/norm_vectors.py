"""The norms that a step's adapters bring, on any device."""

import torch

from .batch import LoraBatch


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
