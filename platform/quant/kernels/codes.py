"""How codes of 4 or 8 bits lie in memory: panels of PANEL outputs, whole steps of inputs, as `expand.py` reads them."""

import numpy as np

from .dot_shapes import STEP
from .expand import FLOAT8, FLOAT8_ORDER, HAS_BYTE_TABLES, INT4, PAIR_BYTES
from .panels import aligned
from .tile import PANEL


def pack_codes(values: np.ndarray, kind: int) -> np.ndarray:
    """values [N, K] uint8 -> [panels, pairs, PAIR_BYTES[kind]] uint8, one-dimensional; zeros where N or K end early."""
    outputs, inputs = values.shape
    panels, pairs = -(-outputs // PANEL), -(-inputs // STEP) * STEP // 2
    padded = np.zeros((panels * PANEL, pairs * 2), np.uint8)
    padded[:outputs, :inputs] = values
    by_pair = padded.reshape(panels, PANEL, pairs, 2).transpose(0, 2, 3, 1)
    packed = aligned(panels * pairs * PAIR_BYTES[kind], np.uint8)
    view = packed.reshape(panels, pairs, PAIR_BYTES[kind])
    if kind == INT4:
        np.bitwise_or(by_pair[:, :, 0], by_pair[:, :, 1] << 4, out=view)
    else:
        view.reshape(by_pair.shape)[:] = by_pair
        if kind == FLOAT8 and HAS_BYTE_TABLES:
            view[:] = view[:, :, FLOAT8_ORDER]
    return packed


def unpack_codes(codes: np.ndarray, kind: int, outputs: int, first: int, last: int) -> np.ndarray:
    """values.T for the inputs `first` (even) to `last`: [last - first, N] uint8."""
    panels = -(-outputs // PANEL)
    pairs = codes.reshape(panels, -1, PAIR_BYTES[kind])[:, first // 2 : (last + 1) // 2]
    if kind == FLOAT8 and HAS_BYTE_TABLES:
        pairs = pairs[:, :, np.argsort(FLOAT8_ORDER)]
    split = np.stack([pairs & 15, pairs >> 4], axis=2) if kind == INT4 else pairs.reshape(panels, -1, 2, PANEL)
    by_input = split.transpose(1, 2, 0, 3).reshape(-1, panels * PANEL)
    return np.ascontiguousarray(by_input[: last - first, :outputs])


def by_panel(rows: np.ndarray) -> np.ndarray:
    """[N, groups] -> [panels, groups, PANEL], one-dimensional, zeros past N: how scales and zero points are read."""
    outputs, groups = rows.shape
    panels = -(-outputs // PANEL)
    padded = np.zeros((panels * PANEL, groups), rows.dtype)
    padded[:outputs] = rows
    ordered = aligned(padded.size, rows.dtype)
    ordered.reshape(panels, groups, PANEL)[:] = padded.reshape(panels, PANEL, groups).transpose(0, 2, 1)
    return ordered
