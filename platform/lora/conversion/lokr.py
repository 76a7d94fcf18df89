"""LoKr: delta = kron(w1, w2) * alpha / r, each of w1 and w2 a matrix or a product of two.

The singular values of a Kronecker product are the products of its factors' ones, and its singular vectors are the
Kronecker products of theirs. So the best LoRA of any rank is found without ever making the product.
"""

from typing import Final

import numpy as np

from .factors import MAX_COLUMNS, Change, Matrix, Singular, TooLarge, Unfit, choose_rank, decompose, decompose_product
from .source import Module, Shapes

PARTS: Final = frozenset({"lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b"})


def shapes(module: Module) -> Shapes:
    whole = [_shape(module, part) for part in ("lokr_w1", "lokr_w2")]
    outputs, inputs = (whole[0][side] * whole[1][side] for side in (0, 1))
    if (outputs, inputs) != (module.outputs, module.inputs):
        raise Unfit(f"makes [{outputs}, {inputs}] of {whole}, the base has [{module.outputs}, {module.inputs}]")
    found: Shapes = {}
    for part, (rows, columns) in zip(("lokr_w1", "lokr_w2"), whole, strict=True):
        if part not in module.parts:
            found |= {part + "_a": (rows, module.rank), part + "_b": (module.rank, columns)}
        elif min(rows, columns) > MAX_COLUMNS:
            raise TooLarge(f"has {part} of shape [{rows}, {columns}]; up to {MAX_COLUMNS} on one side is read")
        else:
            found[part] = rows, columns
    return found


def change(module: Module) -> Change:
    first, second = (_singular(module, part) for part in ("lokr_w1", "lokr_w2"))
    return _kronecker(first, second, module.scaling)


def _shape(module: Module, part: str) -> tuple[int, int]:
    if part in module.parts:
        return module.matrix_shape(part)
    return module.matrix_shape(part + "_a")[0], module.matrix_shape(part + "_b")[1]


def _singular(module: Module, part: str) -> Singular:
    if part not in module.parts:
        return decompose_product(module.read(part + "_a"), module.read(part + "_b"))
    return decompose(module.read(part))


def _kronecker(first: Singular, second: Singular, scaling: float) -> Change:
    values = np.outer(first.values, second.values).ravel() * abs(scaling)
    order = np.argsort(-values, kind="stable")
    kept, square, lost = choose_rank(values[order])
    one, two = np.divmod(order[:kept], len(second.values))
    root = np.sqrt(values[order[:kept]])
    up = _columns(first.left[:, one], second.left[:, two])
    down = _columns(first.right[one].T, second.right[two].T).T
    return Change(up * (root * np.sign(scaling)), root[:, None] * down, square, lost)


def _columns(first: Matrix, second: Matrix) -> Matrix:
    """[a, k] and [b, k] to [a * b, k]: the Kronecker product of each pair of columns."""
    products: Matrix = np.einsum("ak,bk->abk", first, second)
    return products.reshape(first.shape[0] * second.shape[0], first.shape[1])
