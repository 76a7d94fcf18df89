"""What a step on the device answers: tokens that are there at once, and on the host when somebody asks."""

from dataclasses import dataclass

import torch

from .kernels.cuda.sampling.layout import FAILED, LOGPROB, RANK, TOKEN, TOP
from .protocol import TokenLogprob
from .sampling_state import Sampled


@dataclass(slots=True)
class PendingSample:
    token_ids: torch.Tensor
    """[R] int32 on the device, until the next step is launched; 0 for a failed row."""
    host: torch.Tensor
    """The results, as layout.py has their lines, once `copied` has happened."""
    copied: torch.cuda.Event | None
    counts: list[int | None]
    """How many most likely tokens each row wants besides its own; None: not even that one."""

    def wait(self) -> Sampled:
        """As `Sampler.sample` answers it; None of the log-probabilities of a row that failed."""
        if self.copied is not None:
            self.copied.synchronize()
        failed = [row for row in range(len(self.counts)) if self.host[FAILED, row]]
        logprobs = [
            None if count is None or row in failed else self._describe(row, count)
            for row, count in enumerate(self.counts)
        ]
        token_ids: list[int] = self.host[TOKEN, : len(self.counts)].tolist()
        return Sampled(token_ids, logprobs, failed)

    def _describe(self, row: int, count: int) -> TokenLogprob:
        lines = self.host[:, row]
        floats = lines.view(torch.float32) if lines.is_contiguous() else lines.contiguous().view(torch.float32)
        tops = (len(lines) - TOP) // 2
        ids, values = lines[TOP : TOP + count].tolist(), floats[TOP + tops : TOP + tops + count].tolist()
        known = [(token_id, value) for token_id, value in zip(ids, values, strict=True) if token_id >= 0]
        return TokenLogprob(int(lines[TOKEN]), float(floats[LOGPROB]), int(lines[RANK]), known)


@dataclass(slots=True)
class PendingLogprobs:
    parts: list[PendingSample]

    def wait(self) -> list[TokenLogprob]:
        """As `Sampler.prompt_logprobs` answers it."""
        return [entry for part in self.parts for entry in part.wait().logprobs if entry is not None]
