"""A row's parameters, as the sampling kernels read them (triton)."""

from typing import Final

import triton
import triton.language as tl

from . import layout
from .layout import Buffers, RowParameters

IDLE: Final = tl.constexpr(layout.IDLE)
GREEDY: Final = tl.constexpr(layout.GREEDY)
WHOLE: Final = tl.constexpr(layout.WHOLE)
FILTERED: Final = tl.constexpr(layout.FILTERED)
BIASED: Final = tl.constexpr(layout.BIASED)
PENALIZED: Final = tl.constexpr(layout.PENALIZED)
RECORD: Final = tl.constexpr(layout.RECORD)
_place: Final = RowParameters._fields.index
MODE: Final = tl.constexpr(_place("mode"))
SEED: Final = tl.constexpr(_place("seed"))
POSITION: Final = tl.constexpr(_place("position"))
SLOT: Final = tl.constexpr(_place("slot"))
EDITS: Final = tl.constexpr(_place("edits"))
TOP_K: Final = tl.constexpr(_place("top_k"))
LOGPROBS: Final = tl.constexpr(_place("logprobs"))
TEMPERATURE: Final = tl.constexpr(_place("temperature"))
TOP_P: Final = tl.constexpr(_place("top_p"))
MIN_P: Final = tl.constexpr(_place("min_p"))
REPETITION: Final = tl.constexpr(_place("repetition"))
FREQUENCY: Final = tl.constexpr(_place("frequency"))
PRESENCE: Final = tl.constexpr(_place("presence"))


@triton.jit
def integer(buffers: Buffers, row: tl.tensor, FIELD: tl.constexpr) -> tl.tensor:
    """int64"""
    return tl.load(buffers.parameters + row * RECORD + FIELD)


@triton.jit
def real(buffers: Buffers, row: tl.tensor, FIELD: tl.constexpr) -> tl.tensor:
    """float64"""
    return integer(buffers, row, FIELD).to(tl.float64, bitcast=True)


@triton.jit
def short(buffers: Buffers, row: tl.tensor, FIELD: tl.constexpr) -> tl.tensor:
    """A float, rounded to float32."""
    return real(buffers, row, FIELD).to(tl.float32)
