# mypy: allow-untyped-decorators
"""silu(gate) * up of a step with adapters, a block at a time: what its adapters add, then the activation, while the
block is in the second-level cache. Of many tokens, gate and up would go to memory and back once more.

Shapes: T tokens, C hidden size, I intermediate size. The same bits as add_lora and silu_rows one after the other.
"""

from typing import Any, Final

import numpy as np
from numba import njit, prange

from loraplex.lora.kernels.amx.registers import HAS_MATRIX
from loraplex.lora.kernels.claim import claim, counter, shares_of
from loraplex.lora.kernels.cpu import COLUMNS, TOKENS, expand_rows, expand_rows_apart, ranks_of, shrink

from ...kernels.silu import silu_block, silu_run

LEAST_TOKENS: Final = 64
"""Of fewer, gate and up stay in the caches anyway, and the adapters' weights pass faster one after the other."""

ROOM_PADDING: Final = 16
"""Numbers, so that rows of a block do not meet in the same few places of the first-level cache."""


@njit
def has_vectors(vectors: Any, slots: Any, kinds: Any) -> bool:
    """Whether an adapter of the step has gains or shifts on these linears."""
    for slot in slots:
        for kind in kinds:
            if vectors[slot, kind] >= 0:
                return True
    return False


@njit(parallel=True, cache=True)
def add_lora_silu(
    gate_up: Any, x: Any, output: Any, layer: int, kinds: Any, firsts: Any, arena: Any, offset: Any, rank: Any,
    scaling: Any, scales: Any, sorted_tokens: Any, starts: Any, slots: Any, workers: int,
) -> None:  # fmt: skip
    """gate_up [T, 2 I] of the base, x [T, C] -> output [T, I], all float32; the others as in add_lora. What gate_up
    holds afterwards is of no use."""
    tokens, ranks = sorted_tokens.astype(np.int64), ranks_of(rank, slots, kinds, layer)
    h = shrink(gate_up, x, layer, kinds, firsts, arena, offset, ranks, scaling, scales, tokens, starts, slots, workers)
    size, row_blocks = output.shape[1], (len(output) + TOKENS - 1) // TOKENS
    blocks = row_blocks * ((size + COLUMNS - 1) // COLUMNS)
    taken, shares = counter(workers), shares_of(blocks, workers)
    rooms = np.empty((workers, TOKENS if HAS_MATRIX else 0, 2 * COLUMNS + ROOM_PADDING), np.float32)
    for worker in prange(workers):
        share = np.int64(worker)
        while share < len(shares) - 1:
            for block in range(shares[share], shares[share + 1]):
                first, begin = block % row_blocks * TOKENS, block // row_blocks * COLUMNS
                last, columns = min(first + TOKENS, len(output)), min(COLUMNS, size - begin)
                is_apart = HAS_MATRIX and expand_rows_apart(
                    rooms[worker], gate_up, h, x.shape[1], layer, kinds, firsts, arena, offset, ranks, tokens, starts,
                    slots, first, last, begin, columns,
                )  # fmt: skip
                if is_apart:
                    for row in range(last - first):
                        gate, target = row * rooms.shape[2], (first + row) * size + begin
                        silu_run(rooms[worker], gate, gate + COLUMNS, output, target, columns)
                    continue
                for member in range(2):
                    expand_rows(
                        gate_up, h, x.shape[1], layer, kinds, firsts, arena, offset, ranks, tokens, starts, slots,
                        first, last, member, begin, columns,
                    )  # fmt: skip
                silu_block(gate_up, first, last, begin, begin + columns, output)
            share = claim(taken)
