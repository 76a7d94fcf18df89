# mypy: allow-untyped-decorators
"""One layer of a compiled step: convolution, recurrence and gated norm of what its linears projected, in one call by
address, so that its callers are the same code with and without such layers.

Shapes: T tokens, S sequences, N slots, K channels, H value heads of size D, Q key heads of size E, L layers.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numba import carray, njit

from loraplex.quant.kernels.instructions.address import address_of, call, pointer

from ...kernels.vector import Array
from .convolve import Sequences, convolve, norm_heads
from .recur import Layer, recur

(
    KERNEL, CONV_STATES, STATES, QUERY_STARTS, FRESH, SLOTS, KEPT_STARTS, KEPT_TOKENS, KEPT_SLOTS, SEQUENCES, KEPT,
    SLOT_COUNT, TAPS, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, WORKERS,
) = range(18)  # fmt: skip
"""Fields of a step, int64: the kernel's address, then those of arrays, then sizes."""
PLACE, PROJECTED, TOKENS, OUTPUT, CONV, DECAY, DT_BIAS, NORM, EPS = range(WORKERS + 1, WORKERS + 10)
"""Fields of a layer, which `mix` fills in, EPS as float64."""
FIELDS: Final = EPS + 1
INTEGERS: Final = np.zeros(1, np.int64)
SHORT_INTEGERS: Final = np.zeros(1, np.int32)
BOOLEANS: Final = np.zeros(1, np.bool_)
FLOATS: Final = np.zeros(1, np.float32)
DOUBLES: Final = np.zeros(1, np.float64)


@njit
def mix(
    fields: Array, place: int, projected: Array, output: Array, conv: int, decay: int, dt_bias: int, norm: int,
    eps: float,
) -> None:  # fmt: skip
    """projected [T, K + H D + 2 H], as Projections has it side by side -> output [T, H D]; brings the states on.

    conv to norm: addresses of what DeltaWeights has. place: among the recurrent layers.
    """
    fields[PLACE], fields[TOKENS] = place, len(projected)
    fields[PROJECTED], fields[OUTPUT] = projected.ctypes.data, output.ctypes.data
    fields[CONV], fields[DECAY], fields[DT_BIAS], fields[NORM] = conv, decay, dt_bias, norm
    fields.view(np.float64)[EPS] = eps
    call(fields[KERNEL], (np.int64(fields.ctypes.data),))


@functools.cache
def kernel_address(columns: int) -> int:
    """columns: as of `recur`, how many."""
    return address_of(_kernel((0,) * columns))


@functools.cache  # what was compiled lives as long as its address is known
def _kernel(columns: Sequence[int]) -> Any:
    @njit(cache=True, nogil=True)
    def kernel(address: int) -> None:
        fields = carray(pointer(address, INTEGERS), (FIELDS,))
        tokens, sequences, kept, slots = fields[TOKENS], fields[SEQUENCES], fields[KEPT], fields[SLOT_COUNT]
        heads, key_heads, key_dim, size = fields[VALUE_HEADS], fields[KEY_HEADS], fields[KEY_DIM], fields[VALUE_DIM]
        values, channels = heads * size, 2 * key_heads * key_dim + heads * size
        rows, workers = fields[TAPS] - 1, fields[WORKERS]
        step = Sequences(
            carray(pointer(fields[QUERY_STARTS], SHORT_INTEGERS), (sequences + 1,)),
            carray(pointer(fields[FRESH], BOOLEANS), (sequences,)),
            carray(pointer(fields[SLOTS], SHORT_INTEGERS), (sequences,)),
            carray(pointer(fields[KEPT_STARTS], SHORT_INTEGERS), (sequences + 1,)),
            carray(pointer(fields[KEPT_TOKENS], SHORT_INTEGERS), (kept,)),
            carray(pointer(fields[KEPT_SLOTS], SHORT_INTEGERS), (kept,)),
        )
        projected = carray(pointer(fields[PROJECTED], FLOATS), (tokens, channels + values + 2 * heads))
        qkv, gate = np.empty((tokens, channels), np.float32), np.empty((tokens, values), np.float32)
        beta, decays = np.empty((tokens, heads), np.float32), np.empty((tokens, heads), np.float32)
        for token in range(tokens):
            row = projected[token]
            qkv[token], gate[token] = row[:channels], row[channels : channels + values]
            beta[token], decays[token] = row[channels + values : -heads], row[-heads:]
        mixed, counter = np.empty((tokens, channels), np.float32), np.zeros(1, np.int64)
        weights = carray(pointer(fields[CONV], FLOATS), (fields[TAPS], channels))
        place = fields[CONV_STATES] + 4 * fields[PLACE] * slots * rows * channels
        convolve(qkv, weights, carray(pointer(place, FLOATS), (slots, rows, channels)), step, mixed, counter, workers)
        norm_heads(mixed, key_heads, key_dim, workers)
        layer = Layer(
            mixed,
            gate,
            beta,
            decays,
            carray(pointer(fields[DECAY], FLOATS), (heads,)),
            carray(pointer(fields[DT_BIAS], FLOATS), (heads,)),
            carray(pointer(fields[NORM], FLOATS), (size,)),
            np.float32(fields.view(np.float64)[EPS]),
        )
        place = fields[STATES] + 4 * fields[PLACE] * slots * heads * key_dim * size
        counter[0] = 0
        recur(
            layer,
            carray(pointer(place, FLOATS), (slots, heads, key_dim, size)),
            step,
            columns,
            carray(pointer(fields[OUTPUT], FLOATS), (tokens, values)),
            counter,
            workers,
        )

    return kernel
