# mypy: allow-untyped-decorators
"""y[t] = gain * y[t] + scale[t] * shift, in place, where the token's adapter has vectors over the outputs of a linear.

scale is the request's own factor: only adapters without gains may have one, whose shifts are biases of lora_B.
A token's result does not depend on its neighbours.
"""

from typing import Any

from numba import njit, prange


@njit
def _scale_row(row: Any, floats: Any, start: int, width: int, scale: Any) -> None:
    for column in range(width):
        row[column] = floats[start + column] * row[column] + scale * floats[start + width + column]


@njit(parallel=True, cache=True)
def apply_vectors(
    y: Any, layer: int, kinds: Any, firsts: Any, floats: Any, vectors: Any, scales: Any, sorted_tokens: Any,
    starts: Any, slots: Any,
) -> None:  # fmt: skip
    """y [T, columns] float32. kinds [members]: index of each linear of the group; firsts [members + 1]: member m owns
    y's columns firsts[m] to firsts[m + 1]. The others as in PageTable and LoraBatch."""
    for segment in range(len(slots)):
        for member in range(len(kinds)):
            page = vectors[slots[segment], kinds[member]]
            if page >= 0:
                width = firsts[member + 1] - firsts[member]
                start = page + layer * 2 * width
                for index in prange(starts[segment], starts[segment + 1]):
                    row = y[sorted_tokens[index], firsts[member] : firsts[member + 1]]
                    _scale_row(row, floats, start, width, scales[index])
