"""What a step on the device answers: tokens that are there at once, and on the host when somebody asks."""

from dataclasses import dataclass

import numpy as np
import torch

from ...device.host_transfer import Arrival
from ...kernels.cuda.sampling.layout import FAILED, LOGPROB, RANK, TOKEN, TOP
from ...protocol import TokenLogprob
from ..state import Sampled


@dataclass(slots=True)
class PendingSample:
    token_ids: torch.Tensor
    """[R] int32 on the device, until the next step is launched; 0 for a failed row."""
    arrival: Arrival
    """The results, as layout.py has their lines."""
    counts: list[int | None]
    """How many most likely tokens each row wants besides its own; None: not even that one."""

    def wait(self) -> Sampled:
        """As `Sampler.sample` answers it; None of the log-probabilities of a row that failed."""
        host = self.arrival.wait().numpy()
        failed: list[int] = host[FAILED, : len(self.counts)].nonzero()[0].tolist()
        logprobs = [
            None if count is None or row in failed else _describe(host[:, row], count)
            for row, count in enumerate(self.counts)
        ]
        token_ids: list[int] = host[TOKEN, : len(self.counts)].tolist()
        return Sampled(token_ids, logprobs, failed)


@dataclass(slots=True)
class PendingLogprobs:
    parts: list[PendingSample]

    def wait(self) -> list[TokenLogprob]:
        """As `Sampler.prompt_logprobs` answers it."""
        return [entry for part in self.parts for entry in part.wait().logprobs if entry is not None]


def _describe(lines: np.ndarray, count: int) -> TokenLogprob:
    """lines: one row of the results."""
    floats = np.ascontiguousarray(lines).view(np.float32)
    tops = (len(lines) - TOP) // 2
    ids, values = lines[TOP : TOP + count].tolist(), floats[TOP + tops : TOP + tops + count].tolist()
    known = [(token_id, value) for token_id, value in zip(ids, values, strict=True) if token_id >= 0]
    return TokenLogprob(int(lines[TOKEN]), float(floats[LOGPROB]), int(lines[RANK]), known)
