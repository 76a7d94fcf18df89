"""The other way to add adapters: shrink and expand in one launch, whose programs wait for each other between the two
(triton). It saves a launch for each group of linears; benchmarks.gpu has both ways, and a card decides.
"""

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.card import find_card
from loraplex.quant.kernels.cuda.guard import require

from .entry import OnExperts, StepTensors, plan_step
from .expand import expand
from .shrink import shrink
from .tiles import meeting_share


def add_lora_at_once(
    y: torch.Tensor, x: torch.Tensor, step: StepTensors, arrivals: torch.Tensor, chunks: int, layer: int,
    kinds: tuple[int, ...], widths: tuple[int, ...], on: OnExperts | None = None,
) -> None:  # fmt: skip
    """As entry.add_lora, the same bits. arrivals [2] int32, zeros before and after."""
    require(step.arena.element_size() == 2, "only weights of 16 bits are added in one launch")
    require(arrivals.dtype == torch.int32 and arrivals.numel() == 2, "arrivals must be two counts of 32 bits")
    card, launches = find_card(y.device), plan_step(y, x, step, kinds, widths, on)
    share = meeting_share(card)
    programs = card.processors * share.programs
    if triton.knobs.runtime.interpret:
        programs = 1  # the interpreter runs them one after the other
    items = max(chunks * len(widths) * launches.splits, chunks * launches.blocks)
    experts = (step.chunks, step.tokens) if on is None else (on.kinds, on.places)
    own = {"maxnreg": share.registers, "SHRINK_STAGES": share.stages, "EXPAND_STAGES": launches.expand["STAGES"]}
    named = {name: value for name, value in {**launches.shrink, **launches.expand, **own}.items() if name != "STAGES"}
    shrink_and_expand[(min(items, programs),)](
        y, step.intermediate, x, arrivals, step.chunks, step.tokens, step.scales, step.arena, step.offset, step.rank,
        step.scaling, *experts, chunks, layer, **named,
    )  # fmt: skip


@triton.jit(do_not_specialize=["listed", "layer"])
def shrink_and_expand(
    y: tl.tensor, h: tl.tensor, x: tl.tensor, arrivals: tl.tensor, chunks: tl.tensor, tokens: tl.tensor,
    scales: tl.tensor, arena: tl.tensor, offset: tl.tensor, rank: tl.tensor, scaling: tl.tensor, kinds: tl.tensor,
    pair_rows: tl.tensor, listed: tl.tensor, layer: tl.tensor,
    KINDS: tl.constexpr, WIDTHS: tl.constexpr, FIRST_COLUMNS: tl.constexpr, FIRST_BLOCKS: tl.constexpr,
    INPUTS: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, RANKS: tl.constexpr, PAGE: tl.constexpr, ALIGNMENT: tl.constexpr, TABLE_KINDS: tl.constexpr,
    TABLE_PAGES: tl.constexpr, LAYERS: tl.constexpr, ROOM: tl.constexpr, CHAINED: tl.constexpr, TOGETHER: tl.constexpr,
    WIDE_RANKS: tl.constexpr, WIDE_COLUMNS: tl.constexpr, WIDE_STAGES: tl.constexpr, WIDE_TOGETHER: tl.constexpr,
    SLOTS: tl.constexpr, PER_TOKEN: tl.constexpr, BY_TOKEN: tl.constexpr, SHRINK_STAGES: tl.constexpr,
    EXPAND_STAGES: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (programs), no more than the device holds at once, else they wait for ever. The rest as for both kernels."""
    shrink(
        h, x, chunks, tokens, scales, arena, offset, rank, scaling, kinds, pair_rows, listed, layer,
        KINDS, WIDTHS, INPUTS, SPLIT, SPLITS, STEP, ROWS, RANKS, PAGE, ALIGNMENT, TABLE_KINDS, TABLE_PAGES, LAYERS,
        ROOM, CHAINED, SHRINK_STAGES, SLOTS, PER_TOKEN, BY_TOKEN,
    )  # fmt: skip
    meet(arrivals)
    expand(
        y, h, chunks, tokens, arena, offset, rank, kinds, pair_rows, listed, layer,
        KINDS, WIDTHS, FIRST_COLUMNS, FIRST_BLOCKS, INPUTS, SPLITS, COLUMNS, ROWS, RANKS, PAGE, ALIGNMENT, TABLE_KINDS,
        TABLE_PAGES, LAYERS, ROOM, CHAINED, EXPAND_STAGES, TOGETHER, WIDE_RANKS, WIDE_COLUMNS, WIDE_STAGES,
        WIDE_TOGETHER, SLOTS, PER_TOKEN,
    )  # fmt: skip


@triton.jit
def meet(arrivals: tl.tensor) -> None:
    """Waits until all programs of the launch are here; then each sees what all wrote before. The last that leaves puts
    both counts back to 0."""
    programs = tl.num_programs(0)
    tl.debug_barrier()  # all threads of this program have written
    tl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")
    while tl.atomic_add(arrivals, 0, sem="acq_rel", scope="gpu") < programs:
        pass
    tl.debug_barrier()
    if tl.atomic_add(arrivals + 1, 1, sem="acq_rel", scope="gpu") == programs - 1:
        tl.store(arrivals, 0)
        tl.store(arrivals + 1, 0)
