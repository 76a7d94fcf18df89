"""The gated delta rule token by token, some columns of one head's state in the registers of a program; and the gated
norm behind it (triton).

    S = decay S + k (x) beta (v - (decay S)^T k)        o = S^T q        y = norm(o) * weight * silu(z)

The CPU's twin is delta_net/kernels/recur.py. Shapes: T tokens, S sequences, H value heads of size D, Q key heads of
size E, N slots. What a sequence gets depends neither on where a step ends nor on its neighbours.
"""

from typing import Final

import triton
import triton.language as tl

NORM_EPS: Final = tl.constexpr(1e-6)
"""Of the squares of a query or key."""


@triton.jit(
    do_not_specialize_on_alignment=["query_starts", "slots", "positions", "kept_starts", "kept_tokens", "kept_slots"]
)
def recur(
    output: tl.tensor, mixed: tl.tensor, beta: tl.tensor, step: tl.tensor, decay: tl.tensor, dt_bias: tl.tensor,
    state: tl.tensor, query_starts: tl.tensor, slots: tl.tensor, positions: tl.tensor,
    kept_starts: tl.tensor, kept_tokens: tl.tensor, kept_slots: tl.tensor,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_SIZE: tl.constexpr, SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (S, H, blocks of COLUMNS columns). output [T, H D] and mixed [T, 2 Q E + H D] float32; beta, step [T, H] in
    any float dtype; decay, dt_bias [H] float32; state [N, H, E, D] float32. ROWS: E, padded to a power of two."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    rows, columns = tl.arange(0, ROWS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    in_row, in_column = rows < KEY_SIZE, columns < SIZE
    inside = in_row[:, None] & in_column[None, :]
    first, last = tl.load(query_starts + sequence), tl.load(query_starts + sequence + 1)
    if first >= last:
        return
    places = head * KEY_SIZE * SIZE + rows[:, None] * SIZE + columns[None, :]
    own = state + tl.load(slots + sequence).to(tl.int64) * (HEADS * KEY_SIZE * SIZE) + places
    fresh = tl.load(positions + first) + tl.zeros_like(places) == 0
    block = tl.load(own, mask=inside & (fresh == 0), other=0.0)
    rate, bias = tl.load(decay + head), tl.load(dt_bias + head)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_SIZE + HEADS * SIZE
    query = head // (HEADS // KEY_HEADS) * KEY_SIZE
    kept, kept_end = tl.load(kept_starts + sequence), tl.load(kept_starts + sequence + 1)
    for token in range(first, last):
        source = mixed + tl.cast(token, tl.int64) * CHANNELS
        q = tl.load(source + query + rows, mask=in_row, other=0.0)
        k = tl.load(source + KEY_HEADS * KEY_SIZE + query + rows, mask=in_row, other=0.0)
        v = tl.load(source + 2 * KEY_HEADS * KEY_SIZE + head * SIZE + columns, mask=in_column, other=0.0)
        q = q / (tl.sqrt_rn(tl.sum(q * q, 0) + NORM_EPS) * KEY_SIZE**0.5)
        k = k / tl.sqrt_rn(tl.sum(k * k, 0) + NORM_EPS)
        a = tl.load(step + token * HEADS + head).to(tl.float32) + bias
        softplus = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(a)))
        weight = 1.0 / (1.0 + tl.exp(-tl.load(beta + token * HEADS + head).to(tl.float32)))
        block = block * tl.exp(-rate * softplus)
        change = (v - tl.sum(block * k[:, None], 0)) * weight
        block += k[:, None] * change[None, :]
        goal = output + tl.cast(token, tl.int64) * (HEADS * SIZE) + head * SIZE + columns
        tl.store(goal, tl.sum(block * q[:, None], 0), mask=in_column)
        while tl.load(kept_tokens + kept, mask=kept < kept_end, other=-1) == token:
            slot = tl.load(kept_slots + kept).to(tl.int64)
            tl.store(state + slot * (HEADS * KEY_SIZE * SIZE) + places, block, mask=inside)
            kept += 1
    tl.store(own, block, mask=inside)


@triton.jit
def gated_norm(
    result: tl.tensor, values: tl.tensor, gate: tl.tensor, weight: tl.tensor, eps: tl.tensor,
    HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (T, H): result [T, H D] in the dtype of gate [T, H D]; values [T, H D] and weight [D] float32."""
    start = (tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)) * SIZE
    lanes = tl.arange(0, WIDTH)
    inside = lanes < SIZE
    x = tl.load(values + start + lanes, mask=inside, other=0.0)
    factor = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(x * x, 0) / SIZE + eps))
    z = tl.load(gate + start + lanes, mask=inside, other=0.0).to(tl.float32)
    normed = x * factor * tl.load(weight + lanes, mask=inside, other=0.0)
    tl.store(result + start + lanes, (normed * (z / (1.0 + tl.exp(-z)))).to(result.dtype.element_ty), mask=inside)
