"""y = x W^T + bias for a packed weight on a CUDA device: the launches of the kernels beside this file."""

from collections.abc import Iterator
from typing import Any

import torch

from .card import find_card
from .dequantize import dequantize
from .guard import require
from .layout import PackedWeight
from .multiply import add_splits, multiply
from .tiles import ADDED_ELEMENTS, DENSE_BYTES, DENSE_ROWS, PANEL, choose_tile, count_split_runs


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
    rows, tile, card = len(x), choose_tile(len(x)), find_card(x.device)
    width, chained = weight.codes.shape[3], card.can_chain
    split_runs = count_split_runs(weight.outputs, rows, weight.runs, width, card)
    splits = -(-weight.runs // split_runs)
    most = max(weight.codes.numel(), rows * weight.inputs, splits * rows * y.stride(0))
    require(most < 2**31, f"{most} places do not fit 32 bits")
    grid = (len(weight.codes), splits, -(-rows // tile.rows))
    shape = _shape(weight) | {
        "SPLIT_RUNS": split_runs, "PASS_RUNS": tile.runs, "TILE_ROWS": tile.rows, "STAGES": tile.stages,
        "WARPS": tile.warps, "CHAINED": chained, "launch_pdl": chained, "num_warps": tile.warps,
        "num_stages": tile.stages, "maxnreg": tile.limit_registers(width, card),
    }  # fmt: skip
    zeros, scales = weight.zeros, weight.scales
    if splits == 1:
        added = x if bias is None else bias
        multiply[grid](
            y, x, weight.codes, scales, zeros, added, rows, **shape, STRIDE=y.stride(0), BIAS=bias is not None
        )
        return
    parts = torch.empty(splits, rows, weight.outputs, dtype=torch.float32, device=x.device)
    multiply[grid](parts, x, weight.codes, scales, zeros, x, rows, **shape, STRIDE=weight.outputs, BIAS=False)
    add_splits[(-(-rows * weight.outputs // ADDED_ELEMENTS),)](
        y, parts, x if bias is None else bias, rows, OUTPUTS=weight.outputs, STRIDE=y.stride(0), SPLITS=splits,
        ELEMENTS=ADDED_ELEMENTS, BIAS=bias is not None, CHAINED=chained, launch_pdl=chained,
        enable_fp_fusion=True,
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
