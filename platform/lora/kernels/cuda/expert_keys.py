"""Which adapter of which expert each row of experts is of (triton)."""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.card import find_card

from .share import wait_for_previous

OWN = 128
"""Pairs of a program."""


def find_keys(
    experts: torch.Tensor, slots: torch.Tensor, rank: torch.Tensor, vectors: torch.Tensor, kinds: torch.Tensor,
    layer: int,
) -> torch.Tensor:  # fmt: skip
    """experts [T, K] int32, slots [T] int32, rank and vectors as in PageTable, kinds [E, modules] int32: the rows of
    the page table of each expert -> [T K] int32: expert * N + slot; -1 where the token has no adapter that changes it.
    """
    (tokens, chosen), (table_slots, table_kinds, layers) = experts.shape, rank.shape
    keys = torch.empty(tokens * chosen, dtype=torch.int32, device=experts.device)
    if tokens:
        chained = find_card(experts.device).can_chain
        write_keys[(triton.cdiv(len(keys), OWN),)](
            keys, experts, slots, rank, vectors, kinds, len(keys), layer, SLOTS=table_slots, TABLE_KINDS=table_kinds,
            LAYERS=layers, MODULES=kinds.shape[1], PER_TOKEN=chosen, OWN=OWN, CHAINED=chained, launch_pdl=chained,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return keys


@triton.jit(do_not_specialize=["count", "layer"])
def write_keys(
    keys: tl.tensor, experts: tl.tensor, slots: tl.tensor, rank: tl.tensor, vectors: tl.tensor, kinds: tl.tensor,
    count: tl.tensor, layer: tl.tensor,
    SLOTS: tl.constexpr, TABLE_KINDS: tl.constexpr, LAYERS: tl.constexpr, MODULES: tl.constexpr,
    PER_TOKEN: tl.constexpr, OWN: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of pairs)."""
    pair = tl.program_id(0) * OWN + tl.arange(0, OWN)
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    wait_for_previous(CHAINED)
    expert = tl.load(experts + pair, mask=pair < count, other=0)
    slot = tl.load(slots + pair // PER_TOKEN, mask=pair < count, other=-1)
    has, acts = slot >= 0, slot < -1
    for module in tl.static_range(MODULES):
        kind = slot * TABLE_KINDS + tl.load(kinds + expert * MODULES + module)
        acts = acts | (tl.load(rank + kind * LAYERS + layer, mask=has, other=0) > 0)
        acts = acts | (tl.load(vectors + kind, mask=has, other=-1) >= 0)
    tl.store(keys + pair, tl.where(acts, expert * SLOTS + slot, -1), mask=pair < count)
