"""y[t] += scaling * (x[t] A^T) B over rank pages, on a CUDA device: shrink, then expand, with nothing between them."""

from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from loraplex.quant.kernels.cuda.card import Card, find_card
from loraplex.quant.kernels.cuda.guard import require

from .expand import expand
from .scale import scale
from .shrink import shrink
from .tiles import (
    ALIGNMENT_BYTES,
    COLUMNS,
    EXPAND_TOGETHER,
    MOST_CHUNKS,
    PAGE,
    RANKS,
    ROWS,
    STEP_BYTES,
    WIDE_COLUMNS,
    WIDE_RANKS,
    WIDE_STAGES,
    WIDE_TOGETHER,
    count_split_inputs,
    expand_share,
    round_ranks,
    shrink_share,
)  # fmt: skip


class StepTensors(NamedTuple):
    """What both kernels read of a step and of the page table, at addresses that never change."""

    chunks: torch.Tensor
    """[C, 3] int32: slot, first row, number of rows; slot -1 past the end."""
    tokens: torch.Tensor
    """[rows] int32: the token of each row."""
    scales: torch.Tensor
    """[rows] float32: the request's own factor."""
    intermediate: torch.Tensor
    """[elements] float32, tiles.intermediate_elements of them; overwritten by each launch."""
    arena: torch.Tensor
    offset: torch.Tensor
    rank: torch.Tensor
    scaling: torch.Tensor


class OnExperts(NamedTuple):
    """That the rows of a step are those of experts: the list has expert * N + slot in the place of a slot, and pairs in
    the place of tokens, `scales` are those of tokens."""

    kinds: torch.Tensor
    """[E, members] int32: rows of the page table."""
    places: torch.Tensor
    """[pairs] int32: the row of y of each pair."""
    per_token: int
    """Experts of a token."""
    by_token: bool
    """Whether x has a row for each token; else for each row of y."""


class Launches(NamedTuple):
    """What the grids follow from, and what each kernel takes by name: its compile-time numbers and triton's options."""

    splits: int
    blocks: int
    shrinking: int
    """Programs at most; `expanding` alike."""
    expanding: int
    shrink: dict[str, Any]
    expand: dict[str, Any]


def add_lora(
    y: torch.Tensor, x: torch.Tensor, step: StepTensors, chunks: int, layer: int, kinds: tuple[int, ...],
    widths: tuple[int, ...], on: OnExperts | None = None,
) -> None:  # fmt: skip
    """y [T, at least the sum of widths], x [T, in], both contiguous; the rest as in PageTable and LoraBatch. On experts
    `kinds` are not read.

    chunks: how many of the list are looked at, no fewer than T tokens can ever make, so that a captured launch replays
    right with any other step of up to T tokens. Runs of the same step give the same bits.
    """
    launches = plan_step(y, x, step, kinds, widths, on)
    rows, places = (step.chunks, step.tokens), (step.arena, step.offset, step.rank)
    experts = rows if on is None else (on.kinds, on.places)
    shrink[(min(chunks * len(widths) * launches.splits, launches.shrinking),)](
        step.intermediate, x, *rows, step.scales, *places, step.scaling, *experts, chunks, layer, **launches.shrink
    )
    expand[(min(chunks * launches.blocks, launches.expanding),)](
        y, step.intermediate, *rows, *places, *experts, chunks, layer, **launches.expand
    )


def plan_step(
    y: torch.Tensor, x: torch.Tensor, step: StepTensors, kinds: tuple[int, ...], widths: tuple[int, ...],
    on: OnExperts | None,
) -> Launches:  # fmt: skip
    """For tensors as `add_lora` takes them."""
    item_size, (_, table_kinds, pages) = step.arena.element_size(), step.offset.shape
    split = count_split_inputs(x.shape[1], len(y), item_size)
    table = (table_kinds, pages, step.rank.shape[2])
    launches = plan_launches(
        kinds, widths, y.shape[1], x.shape[1], split, step.arena.dtype, y.element_size(), table,
        find_card(y.device), _grouping(step, on),
    )  # fmt: skip
    room = len(y) * len(widths) * launches.splits * round_ranks(pages)
    require(x.is_contiguous() and y.is_contiguous(), "rows must be contiguous")
    require(room <= step.intermediate.numel(), f"there is no room for {room} sums of adapters")
    return launches


def scale_outputs(
    y: torch.Tensor, step: StepTensors, floats: torch.Tensor, vectors: torch.Tensor, chunks: int, layer: int,
    kinds: tuple[int, ...], widths: tuple[int, ...], on: OnExperts | None = None,
) -> None:  # fmt: skip
    """y = gain * y + scale * shift for the tokens of `step` whose adapters have vectors; floats and vectors as in
    PageTable, the rest as for `add_lora`."""
    blocks, (slots, per_token, _) = _first_blocks(widths), _grouping(step, on)
    experts = (step.chunks, step.tokens) if on is None else (on.kinds, on.places)
    require(chunks <= MOST_CHUNKS, f"no grid holds {chunks} chunks")
    scale[blocks[-1], chunks](
        y, step.chunks, step.tokens, step.scales, floats, vectors, *experts, layer, KINDS=kinds, WIDTHS=widths,
        FIRST_COLUMNS=_first_columns(widths, y.shape[1]), FIRST_BLOCKS=blocks, COLUMNS=COLUMNS, ROWS=ROWS,
        TABLE_KINDS=vectors.shape[1], SLOTS=slots, PER_TOKEN=per_token, enable_fp_fusion=True,
    )  # fmt: skip


def _grouping(step: StepTensors, on: OnExperts | None) -> tuple[int, int, bool]:
    """Slots of the list's entries, experts of a token, whether x has a row for each token; zeros for rows of tokens."""
    return (0, 0, False) if on is None else (len(step.offset), on.per_token, on.by_token)


def _first_blocks(widths: tuple[int, ...]) -> tuple[int, ...]:
    """Block of columns that each member begins with, and the total."""
    return tuple(accumulate((-(-width // COLUMNS) for width in widths), initial=0))


def _first_columns(widths: tuple[int, ...], pitch: int) -> tuple[int, ...]:
    """Column of y that each member begins with, and those of a row."""
    return (*accumulate(widths[:-1], initial=0), pitch)


@cache
def plan_launches(
    kinds: tuple[int, ...], widths: tuple[int, ...], pitch: int, inputs: int, split: int, dtype: torch.dtype,
    output_size: int, table: tuple[int, int, int], card: Card, grouping: tuple[int, int, bool] = (0, 0, False),
) -> Launches:  # fmt: skip
    """pitch: columns of a row of y; dtype: of the weights; output_size: bytes of a number of y; table: kinds, pages and
    layers of the page table."""
    item_size, blocks, chained = dtype.itemsize, _first_blocks(widths), card.can_chain
    shrinking, expanding = shrink_share(card), expand_share(item_size, card)
    splits = -(-inputs // split)
    shared = {
        "KINDS": kinds, "WIDTHS": widths, "INPUTS": inputs, "ROWS": ROWS, "RANKS": RANKS, "PAGE": PAGE,
        "ALIGNMENT": ALIGNMENT_BYTES // item_size, "TABLE_KINDS": table[0], "TABLE_PAGES": table[1],
        "LAYERS": table[2], "ROOM": round_ranks(table[1]), "SPLITS": splits, "CHAINED": chained, "launch_pdl": chained,
        "enable_fp_fusion": True, "SLOTS": grouping[0], "PER_TOKEN": grouping[1],
    }  # fmt: skip
    columns = {"FIRST_COLUMNS": _first_columns(widths, pitch), "FIRST_BLOCKS": blocks, "COLUMNS": COLUMNS}
    # Outputs in float32, as of the head, leave no registers for a wide tile.
    wide_ranks = WIDE_RANKS[str(dtype).removeprefix("torch.")] if output_size == 2 else RANKS
    wide = {
        "WIDE_RANKS": wide_ranks, "WIDE_COLUMNS": WIDE_COLUMNS, "WIDE_STAGES": WIDE_STAGES,
        "WIDE_TOGETHER": WIDE_TOGETHER,
    }  # fmt: skip
    return Launches(
        splits,
        blocks[-1],
        card.processors * shrinking.programs,
        card.processors * expanding.programs,
        shrink={
            **shared, "SPLIT": split, "STEP": STEP_BYTES // item_size, "STAGES": shrinking.stages,
            "BY_TOKEN": grouping[2], "maxnreg": shrinking.registers,
        },
        expand={
            **shared, **columns, **wide, "STAGES": expanding.stages, "TOGETHER": EXPAND_TOGETHER,
            "maxnreg": expanding.registers,
        },
    )  # fmt: skip
