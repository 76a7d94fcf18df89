"""From router logits to the experts of each token (triton), all in float32. The CPU's twin is
engine/model/kernels/routing.py.

Shapes: T tokens, E experts, K experts of a token. A program computes one token's, in one order: the same bits in every
batch.
"""

from typing import Final

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.chain import can_chain, let_next_begin, wait_for_previous

SOFTMAX: Final = tl.constexpr(0)
SIGMOID: Final = tl.constexpr(1)
SOFTMAX_OF_CHOSEN: Final = tl.constexpr(2)
LEAST_SUM: Final = tl.constexpr(1e-20)
"""Is added to a sum before weights are divided by it."""
LEAST: Final = tl.constexpr(-3.4028234663852886e38)
"""What a number that is none counts for: more than experts that cannot be chosen."""


def route(
    logits: torch.Tensor, correction: torch.Tensor, factors: torch.Tensor | None, kind: int, chosen: int,
    normalizes: bool, scale: float, groups: int, groups_per_token: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As `route_reference` beside the CPU's twin; experts are int32. factors [E]: of the weights, at last."""
    tokens, count = logits.shape
    experts = torch.empty(tokens, chosen, dtype=torch.int32, device=logits.device)
    weights = torch.empty(tokens, chosen, dtype=torch.float32, device=logits.device)
    if tokens:
        chained = can_chain(logits.device)
        choose_experts[(tokens,)](
            experts, weights, logits, correction, factors, EXPERTS=count, WIDTH=triton.next_power_of_2(count),
            CHOSEN=chosen, CHOSEN_WIDTH=triton.next_power_of_2(chosen), KIND=kind, CORRECTED=len(correction) > 0,
            NORMALIZES=normalizes, SCALE=scale, GROUPS=groups, GROUPS_WIDTH=triton.next_power_of_2(groups),
            GROUPS_CHOSEN=groups_per_token, CHAINED=chained, launch_pdl=chained, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return experts, weights


@triton.jit
def choose_experts(
    experts: tl.tensor, weights: tl.tensor, logits: tl.tensor, correction: tl.tensor, factors: tl.tensor | None,
    EXPERTS: tl.constexpr, WIDTH: tl.constexpr, CHOSEN: tl.constexpr, CHOSEN_WIDTH: tl.constexpr, KIND: tl.constexpr,
    CORRECTED: tl.constexpr, NORMALIZES: tl.constexpr, SCALE: tl.constexpr, GROUPS: tl.constexpr,
    GROUPS_WIDTH: tl.constexpr, GROUPS_CHOSEN: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (tokens,). logits [T, E], correction [E] -> experts and weights [T, K]."""
    token = tl.program_id(0).to(tl.int64)
    lanes, places = tl.arange(0, WIDTH), tl.arange(0, CHOSEN_WIDTH)
    inside, taken = lanes < EXPERTS, places < CHOSEN
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    scores = tl.load(logits + token * EXPERTS + lanes, mask=inside, other=float("-inf"))
    if KIND == SOFTMAX:
        scores = softmax(scores)
    elif KIND == SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-scores))
    judged = scores
    if CORRECTED:
        judged += tl.load(correction + lanes, mask=inside, other=0.0)
    judged = tl.where(inside, tl.where(judged >= LEAST, judged, LEAST), float("-inf"))
    if GROUPS > 1:
        judged = keep_groups(judged, lanes, EXPERTS // GROUPS, GROUPS, GROUPS_WIDTH, GROUPS_CHOSEN)
    found, own = tl.zeros((CHOSEN_WIDTH,), tl.int32), tl.zeros((CHOSEN_WIDTH,), tl.float32)
    for place in tl.static_range(CHOSEN):
        best = find_largest(judged, lanes)
        found = tl.where(places == place, best, found)
        own = tl.where(places == place, tl.sum(tl.where(lanes == best, scores, 0.0), 0), own)
        judged = tl.where(lanes == best, float("-inf"), judged)
    if KIND == SOFTMAX_OF_CHOSEN:
        own = softmax(tl.where(taken, own, float("-inf")))
    if NORMALIZES:
        own = own / (tl.sum(tl.where(taken, own, 0.0), 0) + LEAST_SUM)
    own *= SCALE
    if factors is not None:
        own *= tl.load(factors + found, mask=taken, other=0.0)
    tl.store(experts + token * CHOSEN + places, found, mask=taken)
    tl.store(weights + token * CHOSEN + places, own, mask=taken)


@triton.jit
def softmax(values: tl.tensor) -> tl.tensor:
    powers = tl.exp(values - tl.max(values, 0))
    return powers / tl.sum(powers, 0)


@triton.jit
def find_largest(values: tl.tensor, lanes: tl.tensor) -> tl.tensor:
    """Of equals the first."""
    return tl.min(tl.where(values == tl.max(values, 0), lanes, lanes.shape[0] - 1), 0)


@triton.jit
def keep_groups(
    judged: tl.tensor, lanes: tl.tensor, SIZE: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """-inf for experts of other groups than the CHOSEN whose two largest have the largest sums."""
    numbers = tl.arange(0, WIDTH)
    sums = tl.full((WIDTH,), float("-inf"), tl.float32)
    for group in tl.static_range(GROUPS):
        members = tl.where(lanes // SIZE == group, judged, float("-inf"))
        first = find_largest(members, lanes)
        second = tl.max(tl.where(lanes == first, float("-inf"), members), 0)
        total = tl.max(members, 0) + second
        sums = tl.where(numbers == group, tl.where(total >= LEAST, total, LEAST), sums)
    kept = lanes < 0
    for _ in tl.static_range(CHOSEN):
        best = find_largest(sums, numbers)
        kept = kept | (lanes // SIZE == best)
        sums = tl.where(numbers == best, float("-inf"), sums)
    return tl.where(kept, judged, float("-inf"))
