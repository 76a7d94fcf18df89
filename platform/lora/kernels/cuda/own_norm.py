"""A norm with the weight that a token's adapter brings, in place of the base's (triton).

Shapes: N rows, C size of a row.
"""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.guard import require

MOST_WARPS = 32
WARP_ELEMENTS = 512
"""Of a row, that one warp has: 16 a thread."""


def norm_with_own(
    normed: torch.Tensor, residual: torch.Tensor, tokens: torch.Tensor | None, slots: torch.Tensor,
    floats: torch.Tensor, vectors: torch.Tensor, layer: int, kind: int, eps: float,
    is_layer_norm: bool = False,
) -> None:  # fmt: skip
    """normed [N, C] = residual [N, C] / rms * weight, of a LayerNorm centred and with the bias: in the rows of tokens
    whose adapter has a weight of this kind of norm, and nowhere else. tokens [N] int64: of each row, None: row by row;
    slots [T] int32, by token, -1 for none; floats and vectors as in PageTable. All contiguous."""
    is_packed = normed.is_contiguous() and residual.is_contiguous()
    require(is_packed and normed.shape == residual.shape, "rows and residual must be contiguous and of one shape")
    rows, size = normed.shape
    width = triton.next_power_of_2(size)
    if rows:
        own_norm[(rows,)](
            normed, residual, tokens, slots, floats, vectors, layer, eps, KIND=kind, TABLE_KINDS=vectors.shape[1],
            LAYER_NORM=is_layer_norm, SIZE=size, WIDTH=width, num_warps=min(MOST_WARPS, max(1, width // WARP_ELEMENTS)),
            enable_fp_fusion=True,
        )  # fmt: skip


@triton.jit(do_not_specialize=["layer"], do_not_specialize_on_alignment=["tokens"])
def own_norm(
    normed: tl.tensor, residual: tl.tensor, tokens: tl.tensor | None, slots: tl.tensor, floats: tl.tensor,
    vectors: tl.tensor, layer: tl.tensor, eps: tl.tensor,
    KIND: tl.constexpr, TABLE_KINDS: tl.constexpr, LAYER_NORM: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (rows,). A page is [layers, 2, C], weight and bias of each. tokens may begin anywhere
    in a step's list: one compiled kernel serves all."""
    row = tl.program_id(0).to(tl.int64)
    token = row
    if tokens is not None:
        token = tl.load(tokens + row)
    slot = tl.load(slots + token)
    page = tl.load(vectors + slot * TABLE_KINDS + KIND, mask=slot >= 0, other=-1)
    if page < 0:
        return
    lanes = tl.arange(0, WIDTH)
    inside = lanes < SIZE
    values = tl.load(residual + row * SIZE + lanes, mask=inside, other=0.0).to(tl.float32)
    if LAYER_NORM:
        values = tl.where(inside, values - tl.sum(values, 0) / SIZE, 0.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(values * values, 0) / SIZE + eps))
    weight = tl.load(floats + page + layer * 2 * SIZE + lanes, mask=inside, other=0.0)
    result = values * factor * weight
    if LAYER_NORM:
        result += tl.load(floats + page + (layer * 2 + 1) * SIZE + lanes, mask=inside, other=0.0)
    tl.store(normed + row * SIZE + lanes, result.to(normed.dtype.element_ty), mask=inside)
