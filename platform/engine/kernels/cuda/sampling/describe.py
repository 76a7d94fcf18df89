"""Log-probabilities of a row's token and of its most likely tokens, of the unedited logits (triton).

A chunk names its own most likely tokens, a second launch those of the row: larger log-probability first, then the lower
id, as one integer of both.
"""

from typing import Final

import triton
import triton.language as tl

from . import layout
from .adjust import load_raw
from .buckets import load_chunks
from .layout import Buffers
from .numbers import exponential, order, unorder
from .rows import IDLE, LOGPROBS, MODE, integer

TOKEN: Final = tl.constexpr(layout.TOKEN)
FAILED: Final = tl.constexpr(layout.FAILED)
RANK: Final = tl.constexpr(layout.RANK)
LOGPROB: Final = tl.constexpr(layout.LOGPROB)
TOP: Final = tl.constexpr(layout.TOP)
NONE: Final = tl.constexpr(-(2**63))
"""Below every token's integer."""


@triton.jit
def rank(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows, chunks), after `survey` and when the tokens are known. Writes larger and tops."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    wanted = count_wanted(buffers, row, SHAPE)
    if wanted < 0:
        return
    top, log_sum = normalize(buffers, row, SHAPE)
    ids = chunk * SHAPE.chunk + tl.arange(0, SHAPE.chunk)
    raw = load_raw(buffers, row, ids)
    place = row * SHAPE.chunks + chunk
    tl.store(
        buffers.larger + place, tl.sum((raw > load_raw(buffers, row, token_of(buffers, row, SHAPE))).to(tl.int32), 0)
    )
    keys = (order(raw - top - log_sum).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    keys = tl.where(ids < buffers.vocabulary, keys, NONE)
    for nth in range(wanted):
        most = tl.max(keys, 0)
        tl.store(buffers.tops + place * SHAPE.tops + nth, most)
        keys = tl.where(keys == most, NONE, keys)


@triton.jit
def merge(buffers: Buffers, SHAPE: tl.constexpr) -> None:
    """Grid (rows,). Writes the token's rank and log-probability, and the ids and log-probabilities of the most likely,
    the id -1 past the end of a short vocabulary."""
    row = tl.program_id(0)
    wanted = count_wanted(buffers, row, SHAPE)
    if wanted < 0:
        return
    top, log_sum = normalize(buffers, row, SHAPE)
    result = buffers.results + row
    tl.store(result + RANK * SHAPE.rows, 1 + tl.sum(load_chunks(buffers.larger, row, 0, buffers, SHAPE), 0))
    logprob = load_raw(buffers, row, token_of(buffers, row, SHAPE)) - top - log_sum
    tl.store(result + LOGPROB * SHAPE.rows, logprob.to(tl.int32, bitcast=True))
    lanes, columns = tl.arange(0, SHAPE.lanes)[:, None], tl.arange(0, triton.next_power_of_2(SHAPE.tops))[None, :]
    inside = (lanes * SHAPE.chunk < buffers.vocabulary) & (columns < wanted)
    keys = tl.load(buffers.tops + (row * SHAPE.chunks + lanes) * SHAPE.tops + columns, mask=inside, other=NONE)
    for nth in range(wanted):
        most = tl.max(tl.max(keys, 1), 0)
        keys = tl.where(keys == most, NONE, keys)
        token = tl.where(most == NONE, -1, 0x7FFFFFFF - (most & 0x7FFFFFFF).to(tl.int32))
        tl.store(result + (TOP + nth) * SHAPE.rows, token)
        bits = unorder((most >> 32).to(tl.int32)).to(tl.int32, bitcast=True)
        tl.store(result + (TOP + SHAPE.tops + nth) * SHAPE.rows, bits)


@triton.jit
def count_wanted(buffers: Buffers, row: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    """How many of the most likely tokens; -1 where nothing is to be described: of an idle row nothing else is known."""
    wanted = tl.where(integer(buffers, row, MODE) == IDLE, -1, integer(buffers, row, LOGPROBS)).to(tl.int32)
    if wanted >= 0:
        wanted = tl.where(tl.load(buffers.results + FAILED * SHAPE.rows + row) == 0, wanted, -1)
    return wanted


@triton.jit
def token_of(buffers: Buffers, row: tl.tensor, SHAPE: tl.constexpr) -> tl.tensor:
    return tl.load(buffers.results + TOKEN * SHAPE.rows + row)


@triton.jit
def normalize(buffers: Buffers, row: tl.tensor, SHAPE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The largest logit, and the logarithm of the sum of e^(logit - largest)."""
    best = load_chunks(buffers.raw_best, row, float("-inf"), buffers, SHAPE)
    top = tl.max(best, 0)
    parts = tl.where(best > float("-inf"), load_chunks(buffers.raw_sums, row, 0.0, buffers, SHAPE), 0.0)
    return top, tl.log(tl.sum(parts * exponential(best - top), 0).to(tl.float64)).to(tl.float32)
