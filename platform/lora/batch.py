"""LoraBatch: which token of a step uses which adapter slot, and the page table the kernels read.

Shapes: T tokens of the step, N adapter slots, K module kinds, L layers, P rank pages of the largest adapter.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

RANKS_PER_PAGE: Final = 8

KINDS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Module kinds in the order of the page table. One linear group of the decoder holds one to three of them."""


@dataclass(slots=True)
class PageTable:
    """Where each resident adapter's pages are. One static instance per pool: kernels see every load and eviction.

    The page of (slot, kind, page) starts at element `offset[slot, kind, page]` of `arena` and is laid out
    `[L, RANKS_PER_PAGE, in + out]`: for each layer, RANKS_PER_PAGE rows of A (`[8, in]`, contiguous) followed by
    RANKS_PER_PAGE rows of B stored rank-major (`[8, out]`, contiguous). Ranks past `rank` are zero.
    """

    arena: torch.Tensor
    """[elements], 16-bit or 32-bit float: the adapters' weights."""
    offset: torch.Tensor
    """[N, K, P] int64, in elements of the arena."""
    rank: torch.Tensor
    """[N, K, L] int32, 0 where the adapter does not touch the module."""
    scaling: torch.Tensor
    """[N, K, L] float32, alpha / r (or / sqrt r) of the module."""
    shapes: dict[str, tuple[int, int]]
    """kind -> (in_features, out_features) of the base, as in BaseSignature.kinds."""
    vectors: torch.Tensor = field(init=False)
    """[N, K] int64, where in `floats` the page `[L, 2, out]` of gains and shifts begins: y = gain * y + shift after the
    adapter's ranks. -1: none."""

    def __post_init__(self) -> None:
        self.vectors = torch.full(self.offset.shape[:2], -1, dtype=torch.int64, device=self.offset.device)

    @property
    def floats(self) -> torch.Tensor:
        """The arena read as float32."""
        per_float = 4 // self.arena.element_size()
        return self.arena[: len(self.arena) // per_float * per_float].view(torch.float32)


@dataclass(slots=True)
class LoraBatch:
    """Tokens grouped by adapter, made once per step and read by every linear group."""

    table: PageTable
    token_slot: torch.Tensor
    """[T] int32, adapter slot of each token, -1 for the base."""
    token_scale: torch.Tensor
    """[T] float32, the request's own factor on the adapter's scaling."""
    sorted_tokens: torch.Tensor
    """[M] int32, indices of the M tokens that use an adapter, grouped by slot."""
    segment_starts: torch.Tensor
    """[G + 1] int32, segment g owns sorted_tokens[segment_starts[g] : segment_starts[g + 1]]."""
    segment_slots: torch.Tensor
    """[G] int32, the slot of each segment."""
    arrays: Any = None
    """The tensors as the CPU kernel takes them, made on first use."""

    @staticmethod
    def build(table: PageTable, token_slot: torch.Tensor, token_scale: torch.Tensor) -> "LoraBatch | None":
        """Group the tokens, given on the host; None when every token uses the base."""
        slots = token_slot.numpy()
        order = slots.argsort(kind="stable").astype(np.int32)
        by_slot = slots[order]
        first = int(by_slot.searchsorted(0))
        if first == len(slots):
            return None
        members = by_slot[first:]
        starts = np.concatenate(([0], (members[1:] != members[:-1]).nonzero()[0] + 1, [len(members)]), dtype=np.int32)
        return LoraBatch(
            table,
            token_slot,
            token_scale,
            sorted_tokens=torch.from_numpy(order[first:]),
            segment_starts=torch.from_numpy(starts),
            segment_slots=torch.from_numpy(members[starts[:-1]].astype(np.int32)),
        )
