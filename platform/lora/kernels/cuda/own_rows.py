"""Rows of tokens that adapters bring, found on the device (triton).

A page is [ROW_TOKENS, C] and then as many int32: the tokens, ascending over all pages, -1 past the last. The index says
where each page of an adapter begins.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from .tiles import ALIGNMENT_BYTES, ROW_TOKENS

_ROW_TOKENS: Final = tl.constexpr(ROW_TOKENS)
_ALIGNMENT_BYTES: Final = tl.constexpr(ALIGNMENT_BYTES)


class OwnRows(NamedTuple):
    """At addresses that never change."""

    starts: torch.Tensor
    """[N, K] int64: where an adapter's entries begin."""
    counts: torch.Tensor
    """[N, K] int32: of rows, 0 where it brings none."""
    entries: torch.Tensor
    """The arena as int64."""
    tokens: torch.Tensor
    """The arena as int32."""


@triton.jit
def load_page(own: OwnRows, place: tl.tensor, number: tl.tensor, ITEM_SIZE: tl.constexpr) -> tl.tensor:
    """Where page `number` of the adapter and kind at `place` begins, in elements of ITEM_SIZE bytes."""
    page = tl.load(own.entries + tl.load(own.starts + place) + number)
    return tl.multiple_of(page, _ALIGNMENT_BYTES // ITEM_SIZE)


@triton.jit
def locate_tokens(page: tl.tensor, SIZE: tl.constexpr, ITEM_SIZE: tl.constexpr) -> tl.tensor:
    """Where in `own.tokens` those of a page begin."""
    return (page + _ROW_TOKENS * SIZE) * ITEM_SIZE // 4


@triton.jit
def find_row(
    own: OwnRows, place: tl.tensor, count: tl.tensor, token_id: tl.tensor, SIZE: tl.constexpr, ITEM_SIZE: tl.constexpr
) -> tl.tensor:
    """Where in the arena the token's row begins, -1 where there is none. count > 0: of rows."""
    low, high = count * 0, (count + _ROW_TOKENS - 1) // _ROW_TOKENS
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(own.tokens + locate_tokens(load_page(own, place, middle, ITEM_SIZE), SIZE, ITEM_SIZE))
        low, high = tl.where(first <= token_id, middle, low), tl.where(first <= token_id, high, middle)
    page, lanes = load_page(own, place, low, ITEM_SIZE), tl.arange(0, _ROW_TOKENS)
    found = tl.load(own.tokens + locate_tokens(page, SIZE, ITEM_SIZE) + lanes) == token_id
    return tl.max(tl.where(found, page + lanes * SIZE, -1), 0)
