"""CudaSampler: logits to token ids and log-probabilities where the logits are; the host waits for nothing."""

from typing import Final, NamedTuple

import numpy as np
import torch

from ...device.host_transfer import HostTransfer
from ...kernels.cuda.sampling.launch import describe, sample, with_logits
from ...kernels.cuda.sampling.layout import (  # fmt: skip
    FAILED,
    GREEDY,
    IDLE,
    RECORD,
    TOKEN,
    RowParameters,
    make_buffers,
    make_shape,
)
from ...sampling_params import MAX_LOGPROBS
from ..state import SampleRow
from .rows import RowLines
from .sampled import PendingLogprobs, PendingSample

MODE: Final = RowParameters._fields.index("mode")
POSITION: Final = RowParameters._fields.index("position")
LOGPROBS: Final = RowParameters._fields.index("logprobs")


class RowNeeds(NamedTuple):
    """What the rows of a step ask of the kernels."""

    records: np.ndarray
    """[rows, RECORD] int64: their parameters."""
    counts: list[int | None]
    """Each row's `logprobs`."""
    draws: bool
    """Whether any is drawn."""
    logprobs: bool
    """Whether any is described."""


class CudaSampler:
    """Samples steps of up to `rows` rows and `vocab_size` tokens, token for token as `Sampler` does.

    Sums of weights are exact here and float64 there, and e^x differs by a unit or two in the last place of float32. So
    the two part only where the uniform number, top-p's share or min-p falls that close, about 1e-7 of the mass, to the
    border between two tokens; logits that are equal are no such border. Tokens with less than 2^-44 of the most likely
    one's weight are never drawn.

    A row's edits of logits (bias, allowed and blocked tokens, counts for penalties) are lines of tables on the device,
    8 bytes a token of the vocabulary, written when the row is first seen. Counts are dense, so that a drawn token is
    counted by one addition on the device, wherever it is, while the host does not know it yet.

    On a CPU the kernels need triton's interpreter.
    """

    def __init__(
        self,
        rows: int,
        vocab_size: int,
        device: torch.device,
        host_transfer: HostTransfer,
        parameters: torch.Tensor | None = None,
    ) -> None:
        """`host_transfer`: its `compute` is the stream of the launches.

        `parameters`: [rows, RECORD] int64 on the device. Its owner may put there what `prepare` answers, else `upload`
        does.
        """
        self._shape = make_shape(rows, vocab_size, MAX_LOGPROBS)
        self._buffers = make_buffers(self._shape, rows, device)
        if parameters is not None:
            assert parameters.shape == self._buffers.parameters.shape
            self._buffers = self._buffers._replace(parameters=parameters)
        self._lines = RowLines(self._buffers, rows)
        self._host_transfer = host_transfer
        self._pinned = device.type == "cuda"

    @property
    def token_ids(self) -> torch.Tensor:
        """[rows] int32 on the device, always the same memory: the tokens of the last step, 0 for a failed row."""
        return self._buffers.results[TOKEN]

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> PendingSample:
        """logits [R, V], one row for each of `rows`, each of them once. Further rows of the logits are left alone.

        A row that comes again one position later has counted its last token itself: its list of output tokens may lag
        behind by what is on its way. At any other position it is read anew.
        """
        assert len(rows) <= len(logits)
        asked = self.prepare(rows)
        self.upload(asked.records)
        self.launch(logits, draws=asked.draws, logprobs=asked.logprobs)
        return self.fetch(asked.counts)

    def prepare(self, rows: list[SampleRow]) -> RowNeeds:
        """Enqueue what the tables need for these rows; their parameters are still to be sent."""
        assert len(rows) <= self._shape.rows
        records = self._lines.records(rows)
        records[:, POSITION] = [row.position for row in rows]
        draws, logprobs = bool((records[:, MODE] > GREEDY).any()), bool((records[:, LOGPROBS] >= 0).any())
        return RowNeeds(records, [row.logprobs for row in rows], draws, logprobs)

    def launch(self, logits: torch.Tensor, *, draws: bool = True, logprobs: bool = True) -> None:
        """The kernels alone, for the parameters that were sent last: what a CUDA graph captures."""
        sample(with_logits(self._buffers, logits, self._shape), self._shape, draws=draws, logprobs=logprobs)

    def fetch(self, counts: list[int | None]) -> PendingSample:
        """Begin to copy the results of the last launch to the host, beside what the device does next. counts: each
        row's `logprobs`."""
        return PendingSample(self.token_ids[: len(counts)], self._host_transfer.send(self._buffers.results), counts)

    def prompt_logprobs(self, logits: torch.Tensor, token_ids: list[int], count: int) -> PendingLogprobs:
        """logits [N, V] of N prompt positions and the N tokens that follow them -> one entry each. Takes the place of
        the last step's `token_ids`, and of the parameters."""
        rows = self._shape.rows
        return PendingLogprobs(
            [
                self._describe(logits[first : first + rows], token_ids[first : first + rows], count)
                for first in range(0, len(token_ids), rows)
            ]
        )

    def _describe(self, logits: torch.Tensor, token_ids: list[int], count: int) -> PendingSample:
        records = np.zeros((len(token_ids), RECORD), np.int64)
        records[:, LOGPROBS] = count
        self.upload(records)
        results = torch.empty(2, len(token_ids), dtype=torch.int32, pin_memory=self._pinned)
        results[TOKEN], results[FAILED] = torch.tensor(token_ids), 0
        self._buffers.results[:2, : len(token_ids)].copy_(results, non_blocking=True)
        describe(with_logits(self._buffers, logits, self._shape), self._shape)
        return self.fetch([count] * len(token_ids))

    def upload(self, records: np.ndarray) -> None:
        """One copy of all parameters; rows past the records are idle."""
        # From torch's cache of pinned memory, which gives a piece again only when all copies of it are done.
        pinned = torch.empty(self._buffers.parameters.shape, dtype=torch.int64, pin_memory=self._pinned)
        host = pinned.numpy()
        host[: len(records)], host[len(records) :] = records, IDLE
        self._buffers.parameters.copy_(pinned, non_blocking=True)
