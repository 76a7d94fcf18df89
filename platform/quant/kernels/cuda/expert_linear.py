"""y = x W_e^T + bias_e for rows grouped by expert: the launches of experts.py.

Shapes: T tokens with K of E experts each make P = T K rows, those of an expert side by side.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from .card import find_card
from .chain import can_chain
from .expert_tiles import EXACT_TILE, FLOAT_TILES
from .experts import multiply_codes, multiply_floats
from .layout import FLOAT4, PackedWeight
from .tiles import FEW, PANEL, choose_tile

DTYPES: Final = {
    torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.int32: tl.int32,
}  # fmt: skip


class GroupedRows(NamedTuple):
    pieces: torch.Tensor
    """[pieces, 3] int32: expert, first row, how many rows; expert -1 past the last."""
    pairs: torch.Tensor
    """[P] int32: row r is of token pairs[r] // K."""
    most: int
    """Rows of a piece at most."""
    per_token: int
    """K."""
    experts: torch.Tensor
    """[T, K] int32, of each token."""


def linear_of_floats(
    y: torch.Tensor, x: torch.Tensor, table: torch.Tensor, rows: GroupedRows, *, by_token: bool, has_bias: bool
) -> None:
    """y [P, out] is overwritten; x [T, in] if `by_token`, else [P, in], contiguous; table [E, 2] int64: addresses of
    weight [out, in] and bias [out], in x's dtype."""
    tile = FLOAT_TILES[rows.most] if x.dtype.itemsize == 2 else EXACT_TILE
    outputs, inputs, chained = y.shape[1], x.shape[1], can_chain(x.device)
    multiply_floats[triton.cdiv(outputs, tile.columns), len(rows.pieces)](
        y, x, table, rows.pieces, rows.pairs, INPUTS=inputs, OUTPUTS=outputs,
        PER_TOKEN=rows.per_token if by_token else 0, BIAS=has_bias, ROWS=rows.most, COLUMNS=tile.columns,
        STEP=tile.step, STAGES=tile.stages, CHAINED=chained, launch_pdl=chained, num_warps=tile.warps,
        enable_fp_fusion=True,
    )  # fmt: skip


def linear_of_codes(
    y: torch.Tensor, x: torch.Tensor, table: torch.Tensor, like: PackedWeight, rows: GroupedRows, *, by_token: bool,
    has_bias: bool,
) -> None:  # fmt: skip
    """As `linear_of_floats`; y [P, out] may have rows further apart; table [E, 4] int64: addresses of codes, scales,
    zeros and bias, all of weights that are stored as `like`."""
    tile, chained = choose_tile(rows.most, find_card(x.device)), can_chain(x.device)
    # The sums of two panels and those of their groups of 32 inputs do not fit.
    panels = 1 if like.format == FLOAT4 and rows.most > FEW.rows else tile.panels
    multiply_codes[triton.cdiv(len(like.codes), panels), len(rows.pieces)](
        y, x, table, rows.pieces, rows.pairs, FORMAT=like.format, INPUTS=like.inputs, OUTPUTS=like.outputs,
        STRIDE=y.stride(0), RUN=like.run, RUNS=like.runs, GROUP_RUNS=like.group_runs, PANEL=PANEL,
        ZERO_RUNS=like.group_runs if like.zeros.shape[1] > 1 else 0, ORDERED=like.is_ordered, WIDTH=panels,
        SCALES=DTYPES[like.scales.dtype], PER_TOKEN=rows.per_token if by_token else 0, BIAS=has_bias, ROWS=rows.most,
        STAGES=tile.stages, WARPS=tile.warps, CHAINED=chained, launch_pdl=chained, num_warps=tile.warps,
        num_stages=tile.stages, maxnreg=tile.registers if panels == 2 else None, enable_fp_fusion=True,
    )  # fmt: skip
