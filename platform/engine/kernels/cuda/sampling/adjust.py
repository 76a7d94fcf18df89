"""Logits as a row wants them: bias (with the forbidden tokens at -inf), then penalties, in fp32 (triton).

Nothing edited is stored: every kernel that needs edited logits edits what it reads. A product is rounded before it is
subtracted, as torch does it, so launches switch fusing off.
"""

import triton
import triton.language as tl

from .layout import Buffers, Shape
from .numbers import ONE, exponential
from .rows import BIASED, EDITS, FREQUENCY, MIN_P, PENALIZED, PRESENCE, REPETITION, SLOT, TEMPERATURE, integer, short


@triton.jit
def load_raw(buffers: Buffers, row: tl.tensor, ids: tl.tensor) -> tl.tensor:
    """-inf past the vocabulary."""
    places = buffers.logits + row.to(tl.int64) * buffers.stride + ids
    return tl.load(places, mask=ids < buffers.vocabulary, other=float("-inf")).to(tl.float32)


@triton.jit
def adjust(value: tl.tensor, buffers: Buffers, row: tl.tensor, ids: tl.tensor, SHAPE: Shape) -> tl.tensor:
    """The raw values of tokens `ids`, edited."""
    edits = integer(buffers, row, EDITS)
    places = integer(buffers, row, SLOT) * SHAPE.width + ids
    inside = ids < buffers.vocabulary
    if edits & BIASED != 0:
        value += tl.load(buffers.bias + places, mask=inside, other=0.0)
    if edits & PENALIZED != 0:
        seen = tl.load(buffers.seen + places, mask=inside, other=0)
        repetition = short(buffers, row, REPETITION)
        penalized = tl.where(value > 0, tl.div_rn(value, repetition), value * repetition)
        penalized -= short(buffers, row, FREQUENCY) * tl.maximum(seen - 1, 0).to(tl.float32)
        penalized -= tl.where(seen > 1, short(buffers, row, PRESENCE), 0.0)
        value = tl.where(seen > 0, penalized, value)
    return value


@triton.jit
def load_adjusted(buffers: Buffers, row: tl.tensor, ids: tl.tensor, SHAPE: Shape) -> tl.tensor:
    return adjust(load_raw(buffers, row, ids), buffers, row, ids, SHAPE)


@triton.jit
def measure(value: tl.tensor, top: tl.tensor, buffers: Buffers, row: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Distance to the most likely token in temperatures, at most 0, and mass, 0 where min-p drops the token."""
    distance = tl.div_rn(value - top, short(buffers, row, TEMPERATURE))
    weight = exponential(distance)
    kept = weight >= short(buffers, row, MIN_P)
    return distance, tl.where(kept, weight * ONE, 0.0).to(tl.int64)
