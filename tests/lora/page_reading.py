"""The rank pages as PageTable promises them, read without any of the code that writes them."""

import torch

from loraplex.lora.apply.batch import RANKS_PER_PAGE, PageTable


def read_back(table: PageTable, layer: int, kind: str, slot: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and B [out, rank] of the slot, by the layout that PageTable promises; padding must be zero."""
    (inputs, outputs), index, ordinal = table.shapes[kind], table.row(kind), table.ordinal(kind, layer)
    rank, size = int(table.rank[slot, index, ordinal]), RANKS_PER_PAGE * (inputs + outputs)
    a_rows, b_rows = [], []
    for page in range(-(-int(table.rank[slot, index].max()) // RANKS_PER_PAGE)):
        start = int(table.offset[slot, index, page]) + ordinal * size
        page_of_layer = table.arena[start : start + size]
        a_rows.append(page_of_layer[: RANKS_PER_PAGE * inputs].view(RANKS_PER_PAGE, inputs))
        b_rows.append(page_of_layer[RANKS_PER_PAGE * inputs :].view(RANKS_PER_PAGE, outputs))
    a, b = torch.cat(a_rows), torch.cat(b_rows)
    assert not a[rank:].any() and not b[rank:].any()
    return a[:rank], b[:rank].T
