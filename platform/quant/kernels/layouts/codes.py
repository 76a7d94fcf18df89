"""How codes of 4 or 8 bits lie in memory: panels of PANEL outputs, whole steps of inputs, as `expand.py` reads them."""

from typing import Final

import numpy as np

from ..instructions.dot_shapes import STEP
from ..instructions.tile import PANEL, VECTORS
from .expand import BYTE_ORDERS, HALF_BYTES, HAS_BYTE_TABLES, INT8, PAIRS
from .panels import aligned

EVEN_ODD: Final = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Inputs of a run of 4 bits whose codes are in the low halves of a word's bytes, then those in the high halves."""


def pack_codes(values: np.ndarray, kind: int) -> np.ndarray:
    """values [N, K] uint8 -> [panels, runs, RUN_BYTES] uint8, one-dimensional; zeros past N and K."""
    outputs, inputs = values.shape
    panels, run = -(-outputs // PANEL), 2 * PAIRS[kind]
    padded = np.zeros((panels * PANEL, -(-inputs // STEP) * STEP), np.uint8)
    padded[:outputs, :inputs] = values
    by_run = padded.reshape(panels, PANEL, -1, run).transpose(0, 2, 1, 3)
    packed = aligned(padded.size // (2 if kind in HALF_BYTES else 1), np.uint8)
    words = packed.reshape(*by_run.shape[:3], 4)
    if kind in HALF_BYTES:
        low, high = (by_run[..., half] for half in EVEN_ODD.reshape(2, 4))
        np.bitwise_or(low, high << 4, out=words)
    else:
        ordered = by_run.reshape(*by_run.shape[:2], VECTORS, -1)[..., BYTE_ORDERS[kind]].reshape(words.shape)
        is_looked_up = HAS_BYTE_TABLES and kind == INT8
        words[:] = np.where(ordered & 0x80, ordered ^ 0x80, ~ordered) if is_looked_up else ordered
    return packed


def unpack_codes(codes: np.ndarray, kind: int, outputs: int, first: int, last: int) -> np.ndarray:
    """values.T for the inputs `first` to `last`: [last - first, N] uint8."""
    panels, run = -(-outputs // PANEL), 2 * PAIRS[kind]
    begin = first // run
    words = codes.reshape(panels, -1, PANEL, 4)[:, begin : -(-last // run)]
    if kind in HALF_BYTES:
        words = np.concatenate([words & 15, words >> 4], axis=-1)[..., np.argsort(EVEN_ODD)]
    else:
        is_looked_up = HAS_BYTE_TABLES and kind == INT8
        stored = np.where(words & 0x80, ~words, words ^ 0x80) if is_looked_up else words
        places = np.argsort(BYTE_ORDERS[kind])
        words = stored.reshape(*stored.shape[:2], VECTORS, -1)[..., places].reshape(words.shape)
    by_input = words.transpose(1, 3, 0, 2).reshape(-1, panels * PANEL)
    return np.ascontiguousarray(by_input[first - begin * run : last - begin * run, :outputs])


def by_panel(rows: np.ndarray) -> np.ndarray:
    """[N, groups] -> [panels, groups, PANEL], one-dimensional, zeros past N: how scales and zero points are read."""
    outputs, groups = rows.shape
    panels = -(-outputs // PANEL)
    padded = np.zeros((panels * PANEL, groups), rows.dtype)
    padded[:outputs] = rows
    ordered = aligned(padded.size, rows.dtype)
    ordered.reshape(panels, groups, PANEL)[:] = padded.reshape(panels, PANEL, groups).transpose(0, 2, 1)
    return ordered
