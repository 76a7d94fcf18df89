"""The hidden states of a step that make vectors, summed for each sequence on the device that computed them."""

from collections.abc import Iterator

import torch

from ..batch import Batch
from ..model.decoder import Decoder, Ends
from ..scheduler.plan import Scheduled


def pool_hidden(
    decoder: Decoder, ends: Ends, batch: Batch, scheduled: list[Scheduled]
) -> Iterator[tuple[int, torch.Tensor]]:
    """For each of `scheduled` with positions that are pooled: its index, and their sum, or the largest of each number,
    [C] in float64."""
    spans = _spans(scheduled)
    if spans:
        rows = torch.cat([torch.arange(span.start, span.stop, device=ends[0].device) for span in spans.values()])
        hidden = decoder.hidden(*ends, rows, batch)
        for index, part in zip(spans, torch.split(hidden, [len(span) for span in spans.values()]), strict=True):
            # Of short floats a sum in float32 needs no wider copy of them.
            exact = torch.float64 if part.dtype == torch.float32 else torch.float32
            largest = scheduled[index].takes_largest
            yield index, (part.amax(dim=0) if largest else part.sum(dim=0, dtype=exact)).double()


def _spans(scheduled: list[Scheduled]) -> dict[int, range]:
    """By index into `scheduled`: the rows of the batch that count, where there are any."""
    spans, first = dict[int, range](), 0
    for index, item in enumerate(scheduled):
        positions = item.pooled
        if positions:
            start = first + positions.start - item.start
            spans[index] = range(start, start + len(positions))
        first += item.count
    return spans
