"""RowLines: each row's line of the device tables that edit logits, and its record of parameters."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels.cuda.sampling.layout import (  # fmt: skip
    BIASED,
    FILTERED,
    GREEDY,
    INTEGERS,
    PENALIZED,
    RECORD,
    WHOLE,
    Buffers,
    RowParameters,
)
from ..draw import LEAST_TEMPERATURE, has_filter
from ..state import MASK, SampleRow


@dataclass(slots=True)
class Line:
    """A place in the tables, and what it holds."""

    index: int
    row: SampleRow
    blocked_token_ids: tuple[int, ...]
    position: int
    """Of the next token, if the device has counted all before it."""


class RowLines:
    """Rows keep their lines from step to step; a new row takes the line that has been unused for longest."""

    def __init__(self, buffers: Buffers, lines: int) -> None:
        self._bias, self._seen = buffers.bias, buffers.seen
        self._eight = torch.arange(8, dtype=torch.uint8, device=buffers.bias.device)
        self._free = list(range(lines))
        self._last: tuple[list[int] | None, list[int]] = None, []
        """Names of the rows that came last, None where more than their positions may change; and their lines."""
        self._used: dict[int, Line] = {}
        """By `_name` of the row, the latest use last. A line holds its row, so that no other can get that name."""
        self._records = np.zeros((lines, RECORD), np.int64)

    def records(self, rows: list[SampleRow]) -> np.ndarray:
        """[rows, RECORD] int64, `position` not up to date; what the tables need is on its way to them."""
        names = [id(row.output_token_ids) for row in rows]
        if names != self._last[0]:
            lines = self._place(names, rows)
            settled = not any(row.blocked_token_ids or row.needs_all_tokens for row in rows)
            self._last = names if settled else None, lines
        return self._records[self._last[1]]

    def _place(self, names: list[int], rows: list[SampleRow]) -> list[int]:
        """Each row's line, up to date."""
        known = [self._used.pop(name, None) for name in names]
        self._used |= {name: line for name, line in zip(names, known, strict=True) if line is not None}
        lines = [self._update(row) if line else self._begin(row) for row, line in zip(rows, known, strict=True)]
        self._write_masks([(index, row) for index, row in zip(lines, rows, strict=True) if row.mask is not None])
        return lines

    def _begin(self, row: SampleRow) -> int:
        index = self._free.pop() if self._free else self._used.pop(next(iter(self._used))).index
        self._used[_name(row)] = Line(index, row, row.blocked_token_ids, row.position + 1)
        self._write_record(index, row)
        self._write_bias(index, row)
        if row.penalized:
            self._write_seen(index, row)
        return index

    def _update(self, row: SampleRow) -> int:
        line = self._used[_name(row)]
        if row.blocked_token_ids != line.blocked_token_ids:
            line.blocked_token_ids = row.blocked_token_ids
            self._write_record(line.index, row)
            self._write_bias(line.index, row)
        if row.penalized and row.position != line.position:
            self._write_seen(line.index, row)
        line.position = row.position + 1
        return line.index

    def _write_record(self, index: int, row: SampleRow) -> None:
        params, line = row.params, self._records[index]
        mode = GREEDY if params.temperature == 0 else FILTERED if has_filter(row) else WHOLE
        record = RowParameters(
            mode=mode, seed=_signed(row.seed), position=row.position, slot=index,
            edits=BIASED * _is_biased(row) + PENALIZED * row.penalized, top_k=max(params.top_k, 0),
            logprobs=-1 if row.logprobs is None else row.logprobs,
            temperature=max(params.temperature, LEAST_TEMPERATURE), top_p=params.top_p, min_p=params.min_p,
            repetition=params.repetition_penalty, frequency=params.frequency_penalty, presence=params.presence_penalty,
        )  # fmt: skip
        line[:INTEGERS] = record[:INTEGERS]
        line.view(np.float64)[INTEGERS : len(record)] = record[INTEGERS:]

    def _write_masks(self, masked: list[tuple[int, SampleRow]]) -> None:
        """The bias of constrained rows, anew in each step: -inf where a token is forbidden. One copy of all masks."""
        if not masked:
            return
        packed = np.zeros((len(masked), -(-self._bias.shape[1] // 8)), np.uint8)
        for line, (_, row) in zip(packed, masked, strict=True):
            assert row.mask is not None and row.mask.bits is not None
            bits = row.mask.bits[: len(line)]
            line[: len(bits)] = bits
        lines = self._to_device(np.array([index for index, _ in masked]))
        unpacked = (self._to_device(packed)[:, :, None] >> self._eight) & 1
        allowed = unpacked.flatten(1)[:, : self._bias.shape[1]].bool()
        self._bias[lines] = torch.where(allowed, 0.0, -torch.inf)
        self._add_bias([(index, row) for index, row in masked if row.params.logit_bias])

    def _add_bias(self, biased: list[tuple[int, SampleRow]]) -> None:
        """On top of what is there: one launch for all rows."""
        if not biased:
            return
        width = self._bias.shape[1]
        added = [(index * width + token, value) for index, row in biased for token, value in _bias_of(row)]
        places, values = zip(*added, strict=True)
        on_device = self._to_device(np.array(places, np.int64)), self._to_device(np.array(values, np.float32))
        self._bias.view(-1).scatter_add_(0, *on_device)

    def _write_bias(self, index: int, row: SampleRow) -> None:
        if row.mask is not None or not _is_biased(row):
            return
        allowed = row.params.allowed_token_ids
        bias = dict.fromkeys(allowed or (), 0.0)
        for token_id, value in _bias_of(row):
            if not allowed or token_id in bias:
                bias[token_id] = value
        bias |= dict.fromkeys(row.blocked_token_ids, -np.inf)
        self._bias[index].fill_(-np.inf if allowed else 0.0)
        self._scatter(self._bias[index], np.array(list(bias)), np.array(list(bias.values()), np.float32))

    def _write_seen(self, index: int, row: SampleRow) -> None:
        counts = row.counts()
        self._seen[index].zero_()
        self._scatter(self._seen[index], counts.ids, counts.counts.astype(np.int32) + 1)

    def _scatter(self, line: torch.Tensor, ids: np.ndarray, values: np.ndarray) -> None:
        line.scatter_(0, self._to_device(ids.astype(np.int64)), self._to_device(values))

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        return tensor.pin_memory().to(self._bias.device, non_blocking=True) if self._bias.is_cuda else tensor


def _name(row: SampleRow) -> int:
    """The same for all rows that `SampleRow.at` makes of one."""
    return id(row.output_token_ids)


def _bias_of(row: SampleRow) -> Iterable[tuple[int, float]]:
    return (row.params.logit_bias or {}).items()


def _is_biased(row: SampleRow) -> bool:
    listed = row.params.allowed_token_ids or row.params.logit_bias or row.blocked_token_ids
    return bool(listed or row.mask is not None)


def _signed(seed: int) -> int:
    """The same 64 bits as int64."""
    return ((seed & MASK) ^ (1 << 63)) - (1 << 63)
