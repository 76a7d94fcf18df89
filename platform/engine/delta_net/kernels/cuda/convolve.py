"""The causal convolution and silu, a token in one row of programs, and the inputs that a state keeps (triton).

    y[t, c] = silu(sum over taps j of weight[j, c] * x[t - (taps - 1) + j, c])

The CPU's twin is delta_net/kernels/convolve.py. Shapes: T tokens, S sequences, K channels, N slots. The state
[N, TAPS - 1, K] of a slot has the last inputs of its sequence.
"""

import triton
import triton.language as tl


@triton.jit
def find_sequence(query_starts: tl.tensor, sequences: tl.tensor, token: tl.tensor) -> tl.tensor:
    """The sequence of a token: the last one that starts no later."""
    low, high = tl.cast(0, tl.int32), tl.cast(sequences, tl.int32)
    while high - low > 1:
        middle = (low + high) // 2
        starts_later = tl.load(query_starts + middle) > token
        high = tl.where(starts_later, middle, high)
        low = tl.where(starts_later, low, middle)
    return low


@triton.jit
def input_row(
    x: tl.tensor, state: tl.tensor, first: tl.tensor, at: tl.tensor, slot: tl.tensor, is_fresh: tl.tensor,
    channels: tl.tensor, inside: tl.tensor, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Input number `at` of the sequence's tokens in this step; negative ones come from its state."""
    places = at + tl.zeros_like(channels)
    new = tl.load(x + (first + places).to(tl.int64) * CHANNELS + channels, mask=inside & (places >= 0), other=0.0)
    row = tl.cast(slot, tl.int64) * (TAPS - 1) + places + (TAPS - 1)
    # Where there is no state yet, none is read: as if each number stood at 0 or later.
    old = inside & (places + is_fresh * TAPS < 0)
    return new.to(tl.float32) + tl.load(state + row * CHANNELS + channels, mask=old, other=0.0)


@triton.jit(do_not_specialize=["sequences"], do_not_specialize_on_alignment=["query_starts", "slots", "positions"])
def convolve(
    output: tl.tensor, x: tl.tensor, weight: tl.tensor, state: tl.tensor, query_starts: tl.tensor, slots: tl.tensor,
    positions: tl.tensor, sequences: tl.tensor,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (T, blocks of BLOCK channels). output [T, K] float32; x [T, K] in any float dtype; weight [TAPS, K] float32;
    positions [T]: a sequence whose first one is 0 has no state yet."""
    token = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channels < CHANNELS
    sequence = find_sequence(query_starts, sequences, token)
    first = tl.load(query_starts + sequence)
    slot, is_fresh = tl.load(slots + sequence), tl.cast(tl.load(positions + first) == 0, tl.int32)
    summed = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        at = token - first + tap - (TAPS - 1)
        value = input_row(x, state, first, at, slot, is_fresh, channels, inside, CHANNELS, TAPS)
        summed += value * tl.load(weight + tap * CHANNELS + channels, mask=inside, other=0.0)
    result = summed / (1.0 + tl.exp(-summed))
    tl.store(output + token.to(tl.int64) * CHANNELS + channels, result, mask=inside)


@triton.jit(
    do_not_specialize_on_alignment=["query_starts", "slots", "positions", "kept_starts", "kept_tokens", "kept_slots"]
)
def keep_inputs(
    x: tl.tensor, state: tl.tensor, query_starts: tl.tensor, slots: tl.tensor, positions: tl.tensor,
    kept_starts: tl.tensor, kept_tokens: tl.tensor, kept_slots: tl.tensor,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (S, blocks of channels): what is after kept_tokens goes to kept_slots, and then what is after a sequence's
    last token to its own slot, of which the former still read. A thread reads each row of its channels before it writes
    it."""
    sequence = tl.program_id(0)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first, last = tl.load(query_starts + sequence), tl.load(query_starts + sequence + 1)
    if first >= last:
        return
    slot, is_fresh = tl.load(slots + sequence), tl.cast(tl.load(positions + first) == 0, tl.int32)
    for kept in range(tl.load(kept_starts + sequence), tl.load(kept_starts + sequence + 1)):
        count, target = tl.load(kept_tokens + kept) + 1 - first, tl.load(kept_slots + kept)
        keep_rows(x, state, first, count, slot, target, is_fresh, channels, CHANNELS, TAPS)
    keep_rows(x, state, first, last - first, slot, slot, is_fresh, channels, CHANNELS, TAPS)


@triton.jit
def keep_rows(
    x: tl.tensor, state: tl.tensor, first: tl.tensor, count: tl.tensor, slot: tl.tensor, target: tl.tensor,
    is_fresh: tl.tensor, channels: tl.tensor, CHANNELS: tl.constexpr, TAPS: tl.constexpr,
) -> None:  # fmt: skip
    """The last inputs after `count` > 0 tokens of a sequence to the state `target`."""
    inside = channels < CHANNELS
    for row in tl.static_range(TAPS - 1):
        at = count - (TAPS - 1) + row
        value = input_row(x, state, first, at, slot, is_fresh, channels, inside, CHANNELS, TAPS)
        goal = (target.to(tl.int64) * (TAPS - 1) + row) * CHANNELS
        tl.store(state + goal + channels, value, mask=inside)
