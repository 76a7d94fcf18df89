"""The hidden states of a step that make vectors, taken together for each sequence on the device that computed them."""

from collections.abc import Iterator

import torch

from ..batch import Batch
from ..model.decoder import Decoder, Ends
from ..pooling.wanted import PoolingKind
from ..scheduler.plan import Scheduled


def pool_hidden(
    decoder: Decoder, ends: Ends, batch: Batch, scheduled: list[Scheduled]
) -> Iterator[tuple[int, torch.Tensor]]:
    """For each of `scheduled` with positions that are pooled: its index, and what StepResult.pooled has of them. All of
    them are float32, and the others float64."""
    spans = _spans(scheduled)
    if spans:
        rows = torch.cat([torch.arange(span.start, span.stop, device=ends[0].device) for span in spans.values()])
        hidden = decoder.hidden(*ends, rows, batch)
        for index, part in zip(spans, torch.split(hidden, [len(span) for span in spans.values()]), strict=True):
            yield index, _taken(part, scheduled[index].pooled_by)


def _taken(hidden: torch.Tensor, kind: PoolingKind | None) -> torch.Tensor:
    if kind is PoolingKind.ALL:
        return hidden.to(torch.float32, copy=True)
    if kind is PoolingKind.MAX:
        return hidden.amax(dim=0).double()
    # Of short floats a sum in float32 needs no wider copy of them.
    return hidden.sum(dim=0, dtype=torch.float64 if hidden.dtype == torch.float32 else torch.float32).double()


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
