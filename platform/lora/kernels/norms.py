# mypy: allow-untyped-decorators
"""normed[t] = residual[t] / rms(residual[t]) * weight, for tokens whose adapter brings a norm's weight of its own; of a
LayerNorm of the centred residual, plus the bias that it brings.
"""

import math
from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, error_model="numpy")
def replace_norms(
    normed: Any, residual: Any, tokens: Any, token_slot: Any, layer: int, kind: int, floats: Any, vectors: Any,
    eps: Any, is_layer_norm: bool,
) -> None:  # fmt: skip
    """normed, residual [N, C] float32; tokens [N]: which tokens of the step the rows are; token_slot [T, A], floats and
    vectors as in LoraBatch and PageTable. An adapter with norms is never summed with others: it is in place 0."""
    size = normed.shape[1]
    for row in range(len(tokens)):
        slot = token_slot[tokens[row], 0]
        page = vectors[slot, kind] if slot >= 0 else -1
        if page >= 0:
            weight, mean = page + layer * 2 * size, np.float32(0)
            if is_layer_norm:
                total = 0.0
                for column in range(size):
                    total += residual[row, column]
                mean = np.float32(total / size)
            squares = np.float32(0)
            for column in range(size):
                centred = residual[row, column] - mean
                squares += centred * centred
            factor = np.float32(1 / math.sqrt(squares / np.float32(size) + eps))
            for column in range(size):
                normed[row, column] = (residual[row, column] - mean) * factor * floats[weight + column]
            if is_layer_norm:
                for column in range(size):
                    normed[row, column] += floats[weight + size + column]
