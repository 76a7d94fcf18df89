"""A table's pages moved to where PageStore would put them, for kernels that rely on it."""

import torch

from loraplex.lora.apply.batch import RANKS_PER_PAGE, PageTable
from loraplex.lora.residency.pages import ALIGNMENT_BYTES
from tests.lora.signatures import LINEARS


def align_pages(table: PageTable, device: str = "cpu") -> PageTable:
    """The same adapters on `device`, every page on an aligned address, NaN between them."""
    step = ALIGNMENT_BYTES // table.arena.element_size()
    offset, position, pages = table.offset.clone(), 0, []
    for slot, kind, page in _used_pages(table):
        size = table.rank.shape[2] * RANKS_PER_PAGE * sum(table.shapes[LINEARS[kind]])
        begin = int(table.offset[slot, kind, page])
        gap = torch.full((-size % step + step,), float("nan"), dtype=table.arena.dtype)
        pages += [table.arena[begin : begin + size], gap]
        offset[slot, kind, page] = position
        position += size + len(gap)
    parts = (torch.cat(pages), offset, table.rank, table.scaling)
    return PageTable(*(part.to(device) for part in parts), table.shapes)


def _used_pages(table: PageTable) -> list[tuple[int, int, int]]:
    most = -(-table.rank.amax(2) // RANKS_PER_PAGE)
    return [
        (slot, kind, page)
        for slot, kinds in enumerate(most.tolist())
        for kind, count in enumerate(kinds)
        for page in range(count)
    ]
