"""replace_norms: a norm computed again for the tokens whose adapters bring its weight, and the formula in torch."""

import numpy as np
import torch
import torch.nn.functional as F

from ..kernels import norms
from .apply import kernel_arrays
from .batch import LoraBatch, PageTable
from .norm_vectors import norm_vectors


def replace_norms(
    normed: torch.Tensor,
    residual: torch.Tensor,
    tokens: torch.Tensor | None,
    batch: LoraBatch,
    layer: int,
    kind: str,
    eps: float,
    is_layer_norm: bool = False,
) -> torch.Tensor:
    """On a CPU, normed and residual [N, C] float32, rows of the tokens `tokens` [N] (None: of all); changes normed in
    place, and returns it.

    An adapter with norms is never summed with others: it is in place 0.
    """
    everyone = np.arange(len(normed)) if tokens is None else tokens.numpy()
    *_, floats, vectors, token_slot = kernel_arrays(batch)
    table = batch.table
    norms.replace_norms(
        normed.numpy(), residual.numpy(), everyone, token_slot, table.ordinal(kind, layer), table.row(kind), floats,
        vectors, np.float32(eps), is_layer_norm,
    )  # fmt: skip
    return normed


def compile_norms(table: PageTable) -> None:
    """Run once, on nothing, what adapters with norms of their own will run."""
    rows, tokens, slots = np.empty((0, 1), np.float32), np.empty(0, np.int64), np.empty((0, 1), np.int32)
    floats, vectors = table.floats.numpy(), table.vectors.numpy()
    norms.replace_norms(rows, rows, tokens, slots, 0, 0, floats, vectors, np.float32(1), False)


def replace_norms_reference(
    normed: torch.Tensor,
    residual: torch.Tensor,
    tokens: torch.Tensor,
    batch: LoraBatch | None,
    layer: int,
    kind: str,
    eps: float,
    is_layer_norm: bool = False,
) -> torch.Tensor:
    """replace_norms in plain torch, in any dtype."""
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
