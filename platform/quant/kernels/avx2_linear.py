# mypy: allow-untyped-decorators
"""y = x W^T + bias with W as unsigned codes of 4 or 8 bits, by dot products of words (AVX2). Formula, shapes and codes:
`integer_linear.py`.
"""

from typing import Final

import numpy as np
from numba import njit, prange

from .instructions.avx2_dots import TOKENS, multiply_words
from .instructions.claim import claim, panels_at_once
from .instructions.dot_shapes import BYTES, HALF_BYTE, INTEGER
from .instructions.tile import PANEL
from .integer_linear import BLOCK, EXPANDED, STEP_BYTES, expand_half_bytes
from .layouts.expand import INT4
from .layouts.int16_activations import PER_ROW, STEP, activations_size, write_activations
from .layouts.int16_activations import TOKENS as TILE_TOKENS

SPAN: Final = 16
"""Steps whose weights all tokens meet before the next steps come: so many bytes stay in the first-level cache."""
FEW: Final = 16
"""So many rows or fewer read codes of 4 bits as they are: each is used too seldom to be worth writing it down."""


def avx2_scratch_size(m: int, k: int, workers: int) -> int:
    """Bytes of scratch that avx2_linear needs; its last tile may read numbers of a token more than there are."""
    return workers * SPAN * EXPANDED + int(activations_size(m, k)) + (-(-k // STEP) * m + 1) * PER_ROW * 4


@njit(inline="always")
def _tile_tokens(used: int) -> int:
    """The smallest tile that holds so many tokens."""
    return TOKENS if used > 2 else used


@njit
def _multiply_rows(
    product: int, activations: int, tile_bytes: int, weights: int, count: int, block: int, first: int, group: int,
    scales: int, zeros: int, rows: int, m: int, bias: int, y: int, stride: int, columns: int,
) -> None:  # fmt: skip
    """All rows of y in one panel, by `count` steps of its weights. Arguments as of multiply_words."""
    for token in range(0, m, TOKENS):
        used, row = min(m - token, TOKENS), token // TILE_TOKENS * tile_bytes + token % TILE_TOKENS * 2 * STEP
        multiply_words(
            product, _tile_tokens(used), used, activations + row, weights, count, block, first, group, scales, zeros,
            rows + token * 4, m, bias, y + token * stride, stride, columns,
        )  # fmt: skip


@njit(parallel=True, cache=True)
def avx2_linear(
    kind: int, codes: int, scales: int, zeros: int, bias: int, x: int, factors: int, scratch: int, y: int, m: int,
    n: int, k: int, group: int, workers: int,
) -> None:  # fmt: skip
    """All are addresses but the kind, the sizes and the group, in steps; scratch has avx2_scratch_size(m, k, workers)
    bytes, from a cache line on."""
    steps, total = (k + STEP - 1) // STEP, (n + PANEL - 1) // PANEL
    groups, step_bytes, block = (steps + group - 1) // group, STEP_BYTES[kind], min(group, BLOCK)
    while groups > 1 and group % block:
        block -= 1
    activations, expands = scratch + workers * SPAN * EXPANDED, kind == INT4 and m > FEW
    rows_at, tile_bytes = activations + activations_size(m, k), steps * BYTES
    write_activations(x, factors, activations, m, k, block)
    product = HALF_BYTE if kind == INT4 and not expands else INTEGER
    span = steps if m <= TOKENS else SPAN // block * block
    group_blocks = (group + block - 1) // block if groups > 1 else steps
    chunk = panels_at_once(total, workers)
    counter = np.zeros(1, np.int64)
    for worker in prange(workers):
        room = scratch + worker * SPAN * EXPANDED
        begin = claim(counter) * chunk
        while begin < total:
            for panel in range(begin, min(begin + chunk, total)):
                at = panel * groups * PANEL
                for step in range(0, steps, span):
                    count, weights = min(span, steps - step), codes + (panel * steps + step) * step_bytes
                    if expands:
                        expand_half_bytes(weights, room, count)
                        weights = room
                    first = step // block
                    _multiply_rows(
                        product, activations + step * BYTES, tile_bytes, weights, count, block, first, group_blocks,
                        scales + at * 4, zeros + at, rows_at + first * m * PER_ROW * 4, m,
                        bias + panel * PANEL * 4 if step == 0 else 0, y + panel * PANEL * 4, n * 4, n - panel * PANEL,
                    )  # fmt: skip
            begin = claim(counter) * chunk
