"""LoHa: delta = (a1 b1) * (a2 b2) * alpha / r, elementwise; as one product of rank r * r.

Row o of its left side holds the products of all pairs from rows o of a1 and a2 (the row-wise Khatri-Rao product);
its right side holds the same for the columns of b1 and b2.
"""

import math
from typing import Final

import numpy as np

from .factors import MAX_COLUMNS, Change, Matrix, TooLarge, thin
from .source import Module, Shapes

PARTS: Final = frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"})


def shapes(module: Module) -> Shapes:
    rank = module.rank
    if rank * rank > MAX_COLUMNS:
        raise TooLarge(f"is a LoHa of rank {rank}, a LoRA of {rank * rank}; up to {math.isqrt(MAX_COLUMNS)} is read")
    left, right = (module.outputs, rank), (rank, module.inputs)
    return {"hada_w1_a": left, "hada_w2_a": left, "hada_w1_b": right, "hada_w2_b": right}


def change(module: Module) -> Change:
    left = _all_pairs(*(module.read(f"hada_w{side}_a") for side in (1, 2)))
    right = _all_pairs(*(module.read(f"hada_w{side}_b").T for side in (1, 2)))
    return thin(left * module.scaling, right.T)


def _all_pairs(first: Matrix, second: Matrix) -> Matrix:
    """[n, r] and [n, r] to [n, r * r]."""
    pairs: Matrix = np.einsum("np,nq->npq", first, second).reshape(first.shape[0], -1)
    return pairs
