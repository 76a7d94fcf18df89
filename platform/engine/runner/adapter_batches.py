"""AdapterBatches: which adapters act in each step, worked out once for sequences that decode side by side."""

import numpy as np

from loraplex.lora.apply.batch import LoraBatch

from ..scheduler.plan import Scheduled
from ..scheduler.sequence import Request
from .step_layout import AdapterSlots, adapter_batch


class AdapterBatches:
    """Nothing that a LoraBatch of decodes tells changes until one of them ends, another one joins, or memory of
    adapters is given away: then it is asked anew whether every slot is still its user's."""

    def __init__(self) -> None:
        self._requests: list[Request] | None = None
        """Of the last step, if it was a decode."""
        self._epoch = 0
        """The slots' newest as the batch was made."""
        self._batch: LoraBatch | None = None

    def of(
        self, scheduled: list[Scheduled], adapters: AdapterSlots, owners: np.ndarray, positions: np.ndarray,
        is_decode: bool,
    ) -> tuple[LoraBatch | None, frozenset[int]]:  # fmt: skip
        """As `adapter_batch`, or what it gave for the step before. is_decode: as of StepShape."""
        requests, epoch = [item.sequence.request for item in scheduled], adapters.newest_epoch
        if is_decode and requests == self._requests and epoch == self._epoch:
            return self._batch, frozenset()
        batch, stale = adapter_batch(scheduled, adapters, owners, positions)
        self._requests = requests if is_decode and not stale else None
        self._batch, self._epoch = batch, epoch
        return batch, stale
