# mypy: allow-untyped-decorators
"""A step's work items among workers: the one door to paged.py, whose code differs by what is stored and by the shape of
register tiles. It is called by its address, so its callers are the same code whichever it is.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numba import carray, njit, prange

from loraplex.quant.kernels.instructions.address import address_of, call, pointer

from ...kernels.vector import Array
from .paged import ITEM_FIELDS, TILE, Cache, Scores, Step, work

(
    QUERY, BLOCK_TABLES, OUTPUT, PARTIAL_SUMS, PARTIAL_STATES, KEY, VALUE, SCALES, STATIC, ITEMS, COUNTER,
    SINKS, TOKENS, HEADS, SIZE, SEQUENCES, MOST_BLOCKS, PARTIALS, BLOCKS, KV_HEADS, TILES, SCALED_BLOCKS, ITEM_COUNT,
    SINK_COUNT, WINDOW, MOST, SCALE, SOFT_CAP,
) = range(28)  # fmt: skip
"""Fields of a call, int64: addresses, sizes, and the last two as float64."""
FIELDS: Final = SOFT_CAP + 1
INTEGERS: Final = np.zeros(1, np.int64)
SHORT_INTEGERS: Final = np.zeros(1, np.int32)
FLOATS: Final = np.zeros(1, np.float32)
DOUBLES: Final = np.zeros(1, np.float64)
BITS: Final = np.zeros(1, np.uint16)


@njit(cache=True, nogil=True)
def attend(
    kernel: int,
    step: Step,
    cache: Cache,
    items: Array,
    counter: Array,
    scores: Scores,
    most: int,
    workers: int,
) -> None:
    """Work off `items`, none of more than `most` rows, for every KV head. `kernel`: what `kernel_address` gave."""
    fields = np.empty(FIELDS, np.int64)
    fields[QUERY], fields[BLOCK_TABLES] = step.query.ctypes.data, step.block_tables.ctypes.data
    fields[OUTPUT], fields[PARTIAL_SUMS] = step.output.ctypes.data, step.partial_sums.ctypes.data
    fields[PARTIAL_STATES] = step.partial_states.ctypes.data
    fields[KEY], fields[VALUE] = cache.key.ctypes.data, cache.value.ctypes.data
    fields[SCALES], fields[STATIC] = cache.scales.ctypes.data, cache.static.ctypes.data
    fields[ITEMS], fields[COUNTER] = items.ctypes.data, counter.ctypes.data
    fields[TOKENS], fields[HEADS], fields[SIZE] = step.query.shape
    fields[SEQUENCES], fields[MOST_BLOCKS] = step.block_tables.shape
    fields[BLOCKS], fields[KV_HEADS], fields[TILES] = cache.key.shape[:3]
    fields[PARTIALS], fields[SCALED_BLOCKS], fields[ITEM_COUNT] = len(step.partial_sums), len(cache.scales), len(items)
    fields[SINKS], fields[SINK_COUNT] = scores.sinks.ctypes.data, len(scores.sinks)
    fields[WINDOW], fields[MOST] = scores.window, most
    numbers = fields.view(np.float64)
    numbers[SCALE], numbers[SOFT_CAP] = scores.scale, scores.soft_cap
    counter[0] = 0
    _run(kernel, fields, workers)


@njit(cache=True, nogil=True, parallel=True)
def _run(kernel: int, fields: Array, workers: int) -> None:
    """Workers take the next item when they are free: a slow core delays nobody."""
    address = np.int64(fields.ctypes.data)
    for _ in prange(workers):
        call(kernel, (address,))


@functools.cache
def kernel_address(stored: np.dtype[Any], rows: int, columns: int) -> int:
    """Of the code for keys and values of a dtype, as arrays have it, and register tiles of `rows` x `columns`."""
    return address_of(_kernel(np.zeros(1, stored), (0,) * rows, (0,) * columns))


def _kernel(stored: Any, rows: Sequence[int], columns: Sequence[int]) -> Any:
    @njit(cache=True, nogil=True)
    def kernel(address: int) -> None:
        fields = carray(pointer(address, INTEGERS), (FIELDS,))
        numbers = carray(pointer(address, DOUBLES), (FIELDS,))
        tokens, heads, size = fields[TOKENS], fields[HEADS], fields[SIZE]
        blocks, kv_heads, tiles = fields[BLOCKS], fields[KV_HEADS], fields[TILES]
        step = Step(
            carray(pointer(fields[QUERY], FLOATS), (tokens, heads, size)),
            carray(pointer(fields[BLOCK_TABLES], SHORT_INTEGERS), (fields[SEQUENCES], fields[MOST_BLOCKS])),
            carray(pointer(fields[OUTPUT], FLOATS), (tokens, heads, size)),
            carray(pointer(fields[PARTIAL_SUMS], FLOATS), (fields[PARTIALS], heads, size)),
            carray(pointer(fields[PARTIAL_STATES], FLOATS), (fields[PARTIALS], heads, 2)),
        )
        cache = Cache(
            carray(pointer(fields[KEY], stored), (blocks, kv_heads, tiles, size, TILE)),
            carray(pointer(fields[VALUE], stored), (blocks, kv_heads, tiles, TILE, size)),
            carray(pointer(fields[SCALES], BITS), (fields[SCALED_BLOCKS], kv_heads, tiles, 2, TILE)),
            carray(pointer(fields[STATIC], FLOATS), (2, kv_heads)),
        )
        scores = Scores(
            np.float32(numbers[SCALE]),
            np.float32(numbers[SOFT_CAP]),
            fields[WINDOW],
            carray(pointer(fields[SINKS], FLOATS), (fields[SINK_COUNT],)),
        )
        work(
            step,
            cache,
            carray(pointer(fields[ITEMS], INTEGERS), (fields[ITEM_COUNT], ITEM_FIELDS)),
            carray(pointer(fields[COUNTER], INTEGERS), (1,)),
            scores,
            fields[MOST],
            rows,
            columns,
        )

    return kernel
