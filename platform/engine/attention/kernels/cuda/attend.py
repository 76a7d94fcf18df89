"""softmax(scale * Q K^T) V over paged keys and values, for prefill, decode and both at once (triton).

Shapes: T tokens, S sequences, H query heads, G KV heads, D head size, N blocks. A program has the query heads of one KV
head for a few tokens of one sequence as rows of one matrix, and reads that head's keys once for all of them, KEYS at a
time, each from the block that the table says. With splits, several programs share a tile's keys, and the last of them
adds up what all have found (merge.py). Decodes share the keys of all sequences out (places.py), so that one long
context does not outlast the others.

Keys and values of 8 bits are widened before each product; their scales multiply scores and weights, static ones all
scores and the result. Sinks are weights of each head without a value. Rows without any key give zeros.
"""

import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.chain import let_next_begin, wait_for_previous
from loraplex.quant.kernels.cuda.merge import arrive_last

from .keys import LEAST_FACTOR, LOG2_E, LOWEST
from .merge import merge
from .places import count_parts, find_part, find_sequence, see_keys, share_tiles, split_keys
from .sweep import sweep
from .sweep_bytes import sweep_bytes


@triton.jit(do_not_specialize=["sequences", "tokens", "width", "spare"])
def attend(
    output: tl.tensor, sums: tl.tensor, states: tl.tensor, arrivals: tl.tensor, query: tl.tensor,
    key: tl.tensor, value: tl.tensor, scales: tl.tensor, static: tl.tensor,
    sinks: tl.tensor, blocks: tl.tensor, starts: tl.tensor, lengths: tl.tensor, sequences: tl.tensor,
    tokens: tl.tensor, width: tl.tensor, spare: tl.tensor, factor: tl.tensor, soft_cap: tl.tensor,
    CAPPED: tl.constexpr, WINDOW: tl.constexpr, FORMAT: tl.constexpr, WORTH: tl.constexpr,
    SCALED: tl.constexpr, STATIC: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    SEARCHED: tl.constexpr, LEAST_SPLIT: tl.constexpr, WIDE: tl.constexpr, SHARED: tl.constexpr, CHAINED: tl.constexpr,
    AHEAD: tl.constexpr, OWN_KEYS: tl.constexpr, SINKS: tl.constexpr, CUT: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (tiles, G, splits), all static bounds; SHARED: (S + spare, G), of decodes whose keys are shared out. output,
    query [T, H, D]; sums [splits, T, H, D] and states [splits, T, H, 2] float32, with SHARED [S + spare, H, D] and
    [S + spare, H, 2], of tiles whose keys several programs have; arrivals [tiles, G] int32, zeros; key, value
    [N, G, BLOCK, D]; scales [N, G, BLOCK] uint32, a pair each; static [2, G]; sinks [H], with SINKS; blocks
    [S, width]; starts [S + 1]; lengths [S]. factor: of products of stored numbers, times LOG2_E unless CAPPED;
    soft_cap: of scores, with CAPPED. Both are numbers, so that layers which differ by them share a kernel. WORTH: what
    a stored number is multiplied by. WINDOW: 0 for none. WIDE: places in the cache take 64 bits. CUT: whether several
    programs may share a tile's keys."""
    tile, head, split = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2)
    let_next_begin(CHAINED)
    QUERIES: tl.constexpr = ROWS // GROUP
    if SHARED:
        most = share_tiles(lengths, sequences, spare, WINDOW, KEYS, SEARCHED, LEAST_SPLIT)
        sequence, before = find_part(lengths, sequences, tile, most, WINDOW, KEYS, SEARCHED)
        if sequence >= sequences:
            wait_for_previous(CHAINED)
            return
        split = tile - before
    else:
        sequence = find_sequence(starts, sequences, tile, QUERIES, SEARCHED)
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    first = begin if SHARED else begin + (tile - begin // QUERIES - sequence) * QUERIES
    if first >= end:
        wait_for_previous(CHAINED)
        return
    last = min(first + QUERIES, end)
    offset = tl.load(lengths + sequence) - end
    first_key, last_key = see_keys(offset + first, offset + last - 1, WINDOW)
    splits = tl.num_programs(2)
    if SHARED:
        splits = count_parts((last_key + KEYS - 1) // KEYS - first_key // KEYS, most)
    first_tile, each, used = split_keys(first_key, last_key, splits, KEYS, LEAST_SPLIT)
    if split >= max(used, 1):
        wait_for_previous(CHAINED)
        return

    row, lanes = tl.arange(0, ROWS), tl.arange(0, PADDED)
    token = first + row // GROUP
    live = (token < last) & (row < QUERIES * GROUP)
    inner = (lanes < SIZE) | (SIZE == PADDED)
    heads = token * (KV_HEADS * GROUP) + head * GROUP + row % GROUP
    places = heads[:, None].to(tl.int64) * SIZE + lanes[None, :]
    start = first_tile + split * each
    steps = min((last_key + KEYS - 1) // KEYS - start, each)
    table = blocks + sequence.to(tl.int64) * width
    wait_for_previous(CHAINED)
    score_factor = tl.maximum(tl.load(static + head) * factor, LEAST_FACTOR) if STATIC else factor
    if OWN_KEYS:
        top, total, result = sweep_bytes(
            query, heads, live, offset + token, head, start, steps, first_key, last_key, score_factor, key, value,
            scales, table, soft_cap,
            CAPPED, WINDOW, FORMAT, SCALED, KV_HEADS, SIZE, PADDED, BLOCK, ROWS, KEYS, STAGES, WIDE,
        )  # fmt: skip
    else:
        q = tl.load(query + places, mask=live[:, None] & inner[None, :], other=0.0)
        whole = 0
        if AHEAD and not WINDOW:
            whole = max(0, min(steps, (offset + first + 1) // KEYS - start))
        top, total, result = sweep(
            q, offset + token, head, start, steps, whole, first_key, last_key, score_factor, key, value, scales, table,
            lanes, inner, soft_cap,
            CAPPED, WINDOW, FORMAT, SCALED, KV_HEADS, SIZE, BLOCK, KEYS, STAGES, WIDE, AHEAD,
        )  # fmt: skip

    if SINKS:
        # The first of the programs that share a tile's keys has them.
        sink = tl.load(sinks + head * GROUP + row % GROUP) * LOG2_E
        sink = tl.where(split == 0, sink, LOWEST)
        higher = tl.maximum(top, sink)
        less = tl.exp2(top - higher)
        total = total * less + tl.exp2(sink - higher)
        result *= less[:, None]
        top = higher
    result *= (tl.load(static + KV_HEADS + head) if STATIC else 1.0) * WORTH
    inside = live[:, None] & inner[None, :]
    if CUT:
        if used > 1:
            step = KV_HEADS * GROUP if SHARED else tokens * (KV_HEADS * GROUP)
            origin = ((before - first) if SHARED else first * 0).to(tl.int64) * (KV_HEADS * GROUP)
            part = origin + split.to(tl.int64) * step
            tl.store(sums + part * SIZE + places, result, mask=inside)
            tl.store(states + (part + heads) * 2, top, mask=live)
            tl.store(states + (part + heads) * 2 + 1, total, mask=live)
            if arrive_last(arrivals + (before if SHARED else tile) * KV_HEADS + head, used - 1):
                # A decode has one query: the rows of its heads leave room for more parts at once.
                MERGED: tl.constexpr = triton.next_power_of_2(GROUP) if SHARED else ROWS
                index = tl.arange(0, MERGED)
                owner = first + index // GROUP
                there = (owner < last) & (index < (GROUP if SHARED else QUERIES * GROUP))
                rows = owner * (KV_HEADS * GROUP) + head * GROUP + index % GROUP
                sum_of_all, all_values = merge(sums, states, origin + rows, step, used, there, lanes, inner, SIZE)
                targets = rows[:, None].to(tl.int64) * SIZE + lanes[None, :]
                _put(output, targets, there[:, None] & inner[None, :], sum_of_all, all_values)
        else:
            _put(output, places, inside, total, result)
    else:
        _put(output, places, inside, total, result)


@triton.jit
def _put(output: tl.tensor, places: tl.tensor, inside: tl.tensor, total: tl.tensor, result: tl.tensor) -> None:
    """result / total, zeros where no key was seen."""
    result /= tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(output + places, result.to(output.dtype.element_ty), mask=inside)
