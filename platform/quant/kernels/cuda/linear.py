"""y = x W^T + bias for a packed weight on a CUDA device: the launches of the kernels beside this file."""

from collections.abc import Iterator
from typing import Any

import torch

from .card import find_card
from .dequantize import dequantize
from .guard import require
from .layout import PackedWeight
from .merge import find_arrivals
from .multiply import multiply
from .tiles import DENSE_BYTES, DENSE_ROWS, PANEL, choose_tile, share_out


def linear(y: torch.Tensor, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> None:
    """y [T, out] is overwritten, its rows may lie further apart; x [T, in] bfloat16 or float16, contiguous, its inputs
    in the weight's order; bias [out]. The same shapes give the same bits each time."""
    fits = x.shape == (len(y), weight.inputs) and y.shape[1] == weight.outputs and x.dtype.itemsize == 2
    require(
        fits and x.is_contiguous() and y.stride(1) == 1, "rows must be contiguous, of 16 bits and the weight's sizes"
    )
    if len(x) > DENSE_ROWS:
        multiply_dense(y, x, weight, bias)
    elif len(x):
        multiply_packed(y, x, weight, bias)


def multiply_packed(y: torch.Tensor, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> None:
    """The weight is read once for each block of rows, as it is stored."""
    rows, card = len(x), find_card(x.device)
    tile = choose_tile(rows, card)
    width, chained = weight.codes.shape[3], card.can_chain
    programs, share = share_out(weight.outputs, rows, weight.runs, width, card)
    parts = torch.empty(programs, 2, tile.rows, tile.panels * PANEL, dtype=torch.float32, device=x.device)
    most = max(weight.codes.numel(), rows * weight.inputs, rows * y.stride(0), parts.numel())
    require(most < 2**31, f"{most} places do not fit 32 bits")
    multiply[(programs,)](
        y, x, weight.codes, weight.scales, weight.zeros, x if bias is None else bias, parts, find_arrivals(x.device),
        rows, share, **_shape(weight), WIDTH=tile.panels, STRIDE=y.stride(0),
        BIAS=bias is not None, TILE_ROWS=tile.rows, STAGES=tile.stages, WARPS=tile.warps, CHAINED=chained,
        launch_pdl=chained, num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
    )  # fmt: skip


def multiply_dense(y: torch.Tensor, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> None:
    """A few panels at a time become dense and are multiplied by torch."""
    for first, last, dense in dense_slices(weight, x.dtype):
        torch.mm(x, dense.T, out=y[:, first:last])
    if bias is not None:
        y += bias


def dense_slices(weight: PackedWeight, dtype: torch.dtype) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(first, last, [last - first, in]) over all outputs; each overwrites the one before."""
    panels = max(1, DENSE_BYTES // (PANEL * weight.inputs * dtype.itemsize))
    dense = torch.empty(panels * PANEL, weight.inputs, dtype=dtype, device=weight.codes.device)
    for first in range(0, weight.outputs, panels * PANEL):
        last = min(first + panels * PANEL, weight.outputs)
        dequantize[weight.runs, -(-(last - first) // PANEL)](
            dense, weight.codes, weight.scales, weight.zeros, first // PANEL, **_shape(weight)
        )
        yield first, last, dense[: last - first]


def _shape(weight: PackedWeight) -> dict[str, Any]:
    return {
        "FORMAT": weight.format, "INPUTS": weight.inputs, "OUTPUTS": weight.outputs, "RUN": weight.run,
        "RUNS": weight.runs, "GROUP_RUNS": weight.group_runs, "PANEL": PANEL,
        "ZERO_RUNS": weight.group_runs if weight.zeros.shape[1] > 1 else 0, "ORDERED": weight.is_ordered,
        "enable_fp_fusion": True,
    }  # fmt: skip
