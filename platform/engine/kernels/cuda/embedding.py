"""x[t] = table[token_ids[t]], zeros for an id outside of the table (triton).

Padding rows have such an id (-1), and so have an adapter's own tokens, whose rows are written after.
Shapes: T tokens, V rows of the table, C hidden size.
"""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.guard import require

from .tiles import COLUMN_WARPS, COLUMNS


def gather_rows(token_ids: torch.Tensor, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """token_ids [T] of any integer dtype, table [V, C], both contiguous -> [T, C] in `dtype`."""
    require(token_ids.is_contiguous() and table.is_contiguous(), "tokens and their table must be contiguous")
    rows, size = table.shape
    x = torch.empty(len(token_ids), size, dtype=dtype, device=table.device)
    if len(token_ids):
        gather[len(token_ids), triton.cdiv(size, COLUMNS)](
            x, token_ids, table, ROWS=rows, SIZE=size, WIDTH=COLUMNS, num_warps=COLUMN_WARPS, enable_fp_fusion=True
        )
    return x


@triton.jit
def gather(
    x: tl.tensor, token_ids: tl.tensor, table: tl.tensor, ROWS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """Grid (tokens, blocks of WIDTH columns)."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    row = tl.load(token_ids + token).to(tl.int64)
    inside = columns < SIZE
    values = tl.zeros((WIDTH,), tl.float32)
    if (row >= 0) & (row < ROWS):
        values = tl.load(table + row * SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + token * SIZE + columns, values.to(x.dtype.element_ty), mask=inside)
