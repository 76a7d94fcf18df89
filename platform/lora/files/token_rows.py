"""find_changed_tokens: of which tokens an adapter brings rows that are not the base's own.

PEFT saves the whole embedding and head beside their LoRA, and whenever the vocabulary has grown: nearly all of it are
copies, which take no room here.
"""

from collections.abc import Iterable, Mapping
from io import FileIO
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from .manifest import ModuleLora, TensorInfo
from .values import Bits, convert, read_bits

CHUNK: Final = 4096
"""Rows compared at a time."""


class StoredRows(Protocol):
    """The base's own rows. Asked on a loader thread."""

    def stored_rows(self, kind: str) -> tuple[Bits, str]:
        """Embedding or head [vocab_size, hidden size], and its dtype: F32, F16 or BF16."""


def find_changed_tokens(
    file: FileIO, modules: Iterable[ModuleLora], dtype: str, stored: StoredRows | None
) -> Mapping[str, NDArray[np.int64]]:
    """kind -> tokens, ascending, whose rows differ from the base's when both are served in `dtype`.

    ValueError where DoRA would have to know the norms of another embedding or head than the base's.
    """
    return {module.kind: _changed_tokens(file, module, dtype, stored) for module in modules if module.rows}


def _changed_tokens(file: FileIO, module: ModuleLora, dtype: str, stored: StoredRows | None) -> NDArray[np.int64]:
    assert stored is not None
    changed = [
        _differing(file, rows.tensor, dtype, *stored.stored_rows(module.kind))
        if rows.tokens is None
        else np.array(rows.tokens, np.int64)
        for rows in module.rows
    ]
    tokens = np.unique(np.concatenate(changed))
    if len(tokens) and module.vectors:
        raise ValueError(f"DoRA on {module.kind} with rows of its own for {len(tokens)} tokens is not served")
    return tokens


def _differing(file: FileIO, tensor: TensorInfo, dtype: str, own: Bits, own_dtype: str) -> NDArray[np.int64]:
    """Rows that the base lacks are among them."""
    brought, common = read_bits(file, tensor), min(tensor.shape[0], len(own))
    found = [np.arange(common, tensor.shape[0])]
    for first in range(0, common, CHUNK):
        rows = slice(first, min(first + CHUNK, common))
        differs = convert(brought[rows], tensor.dtype, dtype) != convert(own[rows], own_dtype, dtype)
        found.append(first + np.flatnonzero(differs.any(axis=1)))
    return np.sort(np.concatenate(found))
