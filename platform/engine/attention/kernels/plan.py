"""Cut one step's attention into work items. Once per step; every layer works off the same items."""

from typing import Any, Final

import numpy as np
from numba import njit

from ...kernels.vector import Array
from .paged import FIRST_TOKEN, ITEM_FIELDS, KEY_BEGIN, KEY_END, PARTIAL, POSITION, SEQUENCE, TOKENS

SPLIT: Final = 512
"""Keys of one decode item, a multiple of SPAN: where a sequence is cut depends on its own length alone."""


def plan(query_starts: Any, context_lengths: Any, chunk: int) -> tuple[Any, Any, Any]:
    """Decode items, prefill items of at most `chunk` queries, both [n, 7] with the longest first, and merges [n, 3]."""
    decodes, prefills, merges = _plan(query_starts, context_lengths, chunk)
    return _longest_first(decodes), _longest_first(prefills), merges


def _longest_first(items: Any) -> Any:
    if len(items) < 2:
        return items
    work = items[:, TOKENS] * (items[:, KEY_END] - items[:, KEY_BEGIN])
    return items[np.argsort(-work, kind="stable")]


@njit(cache=True)
def _plan(query_starts: Array, context_lengths: Array, chunk: int) -> tuple[Any, Any, Any]:
    decodes, prefills, merges = _count(query_starts, context_lengths, chunk)
    decode_items = np.empty((decodes, ITEM_FIELDS), np.int64)
    prefill_items = np.empty((prefills, ITEM_FIELDS), np.int64)
    merge_rows = np.empty((merges, 3), np.int64)
    decodes = prefills = merges = partials = 0
    for sequence in range(len(context_lengths)):
        first, length = query_starts[sequence], context_lengths[sequence]
        tokens = query_starts[sequence + 1] - first
        if tokens == 1:
            pieces = (length + SPLIT - 1) // SPLIT
            for piece in range(pieces):
                partial = partials + piece if pieces > 1 else -1
                end = min(length, (piece + 1) * SPLIT)
                _fill(decode_items[decodes], sequence, first, 1, length - 1, piece * SPLIT, end, partial)
                decodes += 1
            if pieces > 1:
                merge_rows[merges, 0], merge_rows[merges, 1], merge_rows[merges, 2] = first, partials, pieces
                merges += 1
                partials += pieces
        else:
            for begin in range(0, tokens, chunk):
                count = min(chunk, tokens - begin)
                position = length - tokens + begin
                _fill(prefill_items[prefills], sequence, first + begin, count, position, 0, position + count, -1)
                prefills += 1
    return decode_items, prefill_items, merge_rows


@njit(cache=True)
def _count(query_starts: Array, context_lengths: Array, chunk: int) -> tuple[int, int, int]:
    decodes = prefills = merges = 0
    for sequence in range(len(context_lengths)):
        tokens = query_starts[sequence + 1] - query_starts[sequence]
        pieces = (context_lengths[sequence] + SPLIT - 1) // SPLIT
        if tokens == 1:
            decodes += pieces
            merges += pieces > 1
        else:
            prefills += (tokens + chunk - 1) // chunk
    return decodes, prefills, merges


@njit(cache=True)
def _fill(item: Any, sequence: int, first: int, tokens: int, position: int, begin: int, end: int, partial: int) -> None:
    item[SEQUENCE], item[FIRST_TOKEN], item[TOKENS], item[POSITION] = sequence, first, tokens, position
    item[KEY_BEGIN], item[KEY_END], item[PARTIAL] = begin, end, partial
