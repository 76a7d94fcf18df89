"""Pages of rows of tokens: `[TOKENS_PER_PAGE, hidden size]`, then as many int32: the tokens, ascending over all pages,
NO_TOKEN past the last. The index, int64, says at which element of the arena each page begins.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..apply.batch import TOKENS_PER_PAGE
from ..files.config_fields import MAX_TOKENS
from ..files.values import Bits

NO_TOKEN: Final = -1
TOKEN_BYTES: Final = 4
INDEX_BYTES: Final = 8
"""Of an entry of the index."""


def page_bytes(hidden_size: int, item_size: int) -> int:
    return TOKENS_PER_PAGE * (hidden_size * item_size + TOKEN_BYTES)


def index_bytes(vocab_size: int) -> int:
    """Of the index of as many rows as an adapter of a base with this vocabulary can have."""
    return -(-(vocab_size + MAX_TOKENS) // TOKENS_PER_PAGE) * INDEX_BYTES


def rows_of(page: Bits) -> Bits:
    """[TOKENS_PER_PAGE, hidden size] of one page, the same memory."""
    return _parts(page)[0]


def write_tokens(pages: Sequence[Bits], tokens: NDArray[np.int64]) -> None:
    """The tokens of rows that lie one after another in `pages`."""
    numbers = np.full(len(pages) * TOKENS_PER_PAGE, NO_TOKEN, np.int32)
    numbers[: len(tokens)] = tokens
    for page, share in zip(pages, numbers.reshape(-1, TOKENS_PER_PAGE), strict=True):
        _parts(page)[1][:] = share


def _parts(page: Bits) -> tuple[Bits, NDArray[np.int32]]:
    flat = page.reshape(-1)
    split = len(flat) - TOKENS_PER_PAGE * TOKEN_BYTES // flat.itemsize
    return flat[:split].reshape(TOKENS_PER_PAGE, -1), flat[split:].view(np.int32)
