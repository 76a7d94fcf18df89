"""y += scaling * (x A^T) B for each token's own adapter, then y = gain * y + scale * shift where it has vectors: the
one entry for the engine, and the formulas in torch."""

from functools import cache
from typing import Any, Final, cast

import numpy as np
import torch

from ..kernels import cpu
from ..kernels.vectors import apply_vectors
from .batch import RANKS_PER_PAGE, Group, LoraBatch

BITS: Final = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
"""How the CPU kernel tells the dtypes apart."""


def add_lora(y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
    """Add the adapters' part to the output of one linear group, in place.

    y [T, sum of the kinds' out_features], x [T, in]: float32, bfloat16 or float16, rows contiguous. The same layers
    have all of the kinds, this layer of the base among them. Sums are fp32 and rounded once, into y. A token's result
    does not depend on the other tokens of the batch (on CUDA, its last bits depend on whether the step is small enough
    for sums to be split).
    """
    if y.device.type == "cpu":
        _add_on_cpu(y, x, batch, layer, kinds)
    elif y.device.type == "cuda":
        for part in batch.rounds():
            add_with_triton(y, x, part, layer, kinds)
        vectors_reference(y, batch, layer, kinds)
    else:
        lora_reference(y, x, batch, layer, kinds)
        vectors_reference(y, batch, layer, kinds)


def _add_on_cpu(y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
    assert y.is_contiguous()
    members, firsts = _members(batch.table.group(kinds))
    ordinal = batch.table.ordinal(kinds[0], layer)
    *ranks, floats, vectors, _ = kernel_arrays(batch)
    workers = torch.get_num_threads()
    cpu.add_lora(as_bits(y), as_bits(x.contiguous()), ordinal, members, firsts, *ranks, workers)
    if y.dtype == torch.float32:
        apply_vectors(y.numpy(), ordinal, members, firsts, floats, vectors, *ranks[4:8])
    else:
        vectors_reference(y, batch, layer, kinds)


def add_with_triton(y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
    """The ranks' part by the kernels for CUDA, for a batch of one round.

    `batch.arrays` is the engine's StepBuffers, or made here on first use.
    """
    from .rounds import add_rounds
    from .step_buffers import StepBuffers

    if batch.arrays is None:
        batch.arrays = StepBuffers(batch.table, len(batch.token_slot))
        batch.arrays.update(batch)
    add_rounds(y, x, [batch.arrays], batch.table, layer, kinds)


def kernel_arrays(batch: LoraBatch) -> tuple[Any, ...]:
    """The page table and the batch as the CPU kernel takes them, made once per batch."""
    if batch.arrays is None:
        table = batch.table
        batch.arrays = (
            *(as_bits(table.arena), table.offset.numpy(), table.rank.numpy(), table.scaling.numpy()),
            *(batch.scales.numpy(), batch.sorted_tokens.numpy()),
            *(batch.segment_starts.numpy(), batch.segment_slots.numpy(), batch.round_starts.numpy()),
            *(table.floats.numpy(), table.vectors.numpy(), batch.token_slot.numpy()),
        )
    return cast("tuple[Any, ...]", batch.arrays)


@cache
def _members(group: Group) -> tuple[Any, Any]:
    """Rows of the kinds, and where each one's columns begin (and the last one's end)."""
    return np.array(group.rows), np.cumsum([0, *group.widths])


def as_bits(tensor: torch.Tensor) -> Any:
    """As the CPU kernels take it."""
    return tensor.numpy() if tensor.dtype == torch.float32 else tensor.view(BITS[tensor.dtype]).numpy()


def lora_reference(y: torch.Tensor, x: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
    """add_lora in plain torch, one adapter and one kind at a time."""
    starts = batch.segment_starts.tolist()
    for segment, slot in enumerate(batch.segment_slots.tolist()):
        members = slice(starts[segment], starts[segment + 1])
        tokens, scales = batch.sorted_tokens[members].long(), batch.scales[members]
        first = 0
        for kind in kinds:
            columns = slice(first, first := first + batch.table.shapes[kind][1])
            delta = _delta(x[tokens].float(), batch, slot, layer, kind) * scales[:, None]
            y[tokens, columns] = (y[tokens, columns].float() + delta).to(y.dtype)


def vectors_reference(y: torch.Tensor, batch: LoraBatch, layer: int, kinds: tuple[str, ...]) -> None:
    """y = gain * y + scale * shift in plain torch, for the tokens whose adapters have vectors over these outputs."""
    starts = batch.segment_starts.tolist()
    for segment, slot in enumerate(batch.segment_slots.tolist()):
        members = slice(starts[segment], starts[segment + 1])
        tokens, scales = batch.sorted_tokens[members].long(), batch.scales[members]
        first = 0
        for kind in kinds:
            width = batch.table.shapes[kind][1]
            columns = slice(first, first := first + width)
            page = int(batch.table.vectors[slot, batch.table.row(kind)])
            if page >= 0:
                start = page + batch.table.ordinal(kind, layer) * 2 * width
                gain, shift = batch.table.floats[start:][: 2 * width].view(2, width)
                y[tokens, columns] = (y[tokens, columns].float() * gain + scales[:, None] * shift).to(y.dtype)


def _delta(x: torch.Tensor, batch: LoraBatch, slot: int, layer: int, kind: str) -> torch.Tensor:
    table, row, ordinal = batch.table, batch.table.row(kind), batch.table.ordinal(kind, layer)
    inputs, outputs = table.shapes[kind]
    size = RANKS_PER_PAGE * (inputs + outputs)
    delta = torch.zeros(len(x), outputs, device=x.device)
    for page in range(-(-int(table.rank[slot, row, ordinal]) // RANKS_PER_PAGE)):
        start = int(table.offset[slot, row, page]) + ordinal * size
        weights = table.arena[start : start + size].float()
        a, b = weights[: RANKS_PER_PAGE * inputs], weights[RANKS_PER_PAGE * inputs :]
        delta += x @ a.view(RANKS_PER_PAGE, inputs).T @ b.view(RANKS_PER_PAGE, outputs)
    return delta * table.scaling[slot, row, ordinal]
