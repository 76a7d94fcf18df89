"""Rows in the order of their keys, and the list of pieces of rows of one key (triton): each program compares its keys
with all. Equal keys keep their order, so that results are the same each time.

Shapes: P pairs of a token and an expert. A key below 0 is of a pair that has no row.
"""

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from loraplex.quant.kernels.cuda.chain import can_chain, let_next_begin, wait_for_previous

OWN: Final = 32
"""Keys of a program."""
OTHERS: Final = 64
"""Keys that these are compared with at a time."""


class Rows(NamedTuple):
    pieces: torch.Tensor
    """[most pieces, 3] int32: key, first row, how many rows; key -1 past the last."""
    pairs: torch.Tensor
    """[P] int32: the pair of each row; of no meaning past the last row."""
    places: torch.Tensor
    """[P] int32: the row of each pair; -1: it has none."""


def group_rows(keys: torch.Tensor, most: int, pieces: int) -> Rows:
    """keys [P] int32; a piece has `most` rows at most, and there are no more than `pieces`."""
    count, device = len(keys), keys.device
    places, before, same, pairs = (torch.empty(count, dtype=torch.int32, device=device) for _ in range(4))
    listed = torch.empty(pieces, 3, dtype=torch.int32, device=device)
    chained, grid = can_chain(device), (triton.cdiv(max(count, pieces), OWN),)
    shared = {
        "OWN": OWN, "OTHERS": OTHERS, "CHAINED": chained, "launch_pdl": chained, "num_warps": 4,
        "enable_fp_fusion": False,
    }  # fmt: skip
    if count:
        place_rows[grid](places, before, same, listed, keys, count, pieces, **shared)
        list_pieces[grid](listed, pairs, keys, places, before, same, count, MOST=most, **shared)
    return Rows(listed, pairs, places)


@triton.jit(do_not_specialize=["count", "listed"])
def place_rows(
    places: tl.tensor, before: tl.tensor, same: tl.tensor, pieces: tl.tensor, keys: tl.tensor, count: tl.tensor,
    listed: tl.tensor, OWN: tl.constexpr, OTHERS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of pairs or pieces). before [P]: equal keys of earlier pairs; same [P]: equal keys. All pieces are
    marked as past the last."""
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    key = tl.load(keys + own, mask=own < count, other=-1)
    smaller, earlier, equal = tl.zeros((OWN,), tl.int32), tl.zeros((OWN,), tl.int32), tl.zeros((OWN,), tl.int32)
    for first in tl.range(0, count, OTHERS):
        other = first + tl.arange(0, OTHERS)
        others = tl.load(keys + other, mask=other < count, other=-1)
        is_same = (others[None, :] == key[:, None]) & (others >= 0)[None, :]
        smaller += tl.sum(((others[None, :] < key[:, None]) & (others >= 0)[None, :]).to(tl.int32), 1)
        earlier += tl.sum((is_same & (other[None, :] < own[:, None])).to(tl.int32), 1)
        equal += tl.sum(is_same.to(tl.int32), 1)
    tl.store(places + own, tl.where(key >= 0, smaller + earlier, -1), mask=own < count)
    tl.store(before + own, earlier, mask=own < count)
    tl.store(same + own, equal, mask=own < count)
    tl.store(pieces + 3 * own, own * 0 - 1, mask=own < listed)
    tl.store(pieces + 3 * own + 2, own * 0, mask=own < listed)


@triton.jit(do_not_specialize=["count"])
def list_pieces(
    pieces: tl.tensor, pairs: tl.tensor, keys: tl.tensor, places: tl.tensor, before: tl.tensor, same: tl.tensor,
    count: tl.tensor, MOST: tl.constexpr, OWN: tl.constexpr, OTHERS: tl.constexpr, CHAINED: tl.constexpr,
) -> None:  # fmt: skip
    """Grid (blocks of pairs). Each MOST-th row of a key begins a piece."""
    own = tl.program_id(0) * OWN + tl.arange(0, OWN)
    let_next_begin(CHAINED)
    wait_for_previous(CHAINED)
    place = tl.load(places + own, mask=own < count, other=-1)
    number = tl.zeros((OWN,), tl.int32)
    for first in tl.range(0, count, OTHERS):
        other = first + tl.arange(0, OTHERS)
        where = tl.load(places + other, mask=other < count, other=-1)
        begins = (where >= 0) & (tl.load(before + other, mask=other < count, other=0) % MOST == 0)
        number += tl.sum((begins[None, :] & (where[None, :] < place[:, None])).to(tl.int32), 1)
    tl.store(pairs + place, own, mask=place >= 0)
    earlier = tl.load(before + own, mask=own < count, other=0)
    left = tl.load(same + own, mask=own < count, other=0) - earlier
    begins = (place >= 0) & (earlier % MOST == 0)
    tl.store(pieces + 3 * number, tl.load(keys + own, mask=begins, other=-1), mask=begins)
    tl.store(pieces + 3 * number + 1, place, mask=begins)
    tl.store(pieces + 3 * number + 2, tl.minimum(left, MOST), mask=begins)
