"""BlockTables: the block tables of a step on the host, kept from one step to the next."""

import numpy as np
from numpy.typing import NDArray

from ..scheduler.plan import Scheduled


class BlockTables:
    """A sequence that stays in its row costs what it grew by: turning all its blocks into an array would take longer
    than anything else that is done for it in a decode."""

    def __init__(self, sequences: int, blocks: int) -> None:
        self._rows = np.zeros((sequences, blocks), np.int32)
        self._held: list[list[int]] = [[] for _ in range(sequences)]
        """Whose blocks each row has. A sequence appends to its list, or begins another one."""
        self._counts = [0] * sequences

    def of(self, scheduled: list[Scheduled]) -> NDArray[np.int32]:
        """[S, P] of the longest table, until it is asked again. What a shorter one has not come to means nothing."""
        rows, held, counts, width = self._rows, self._held, self._counts, 0
        for index, item in enumerate(scheduled):
            blocks = item.sequence.blocks
            count = len(blocks)
            if held[index] is not blocks:
                held[index], counts[index] = blocks, 0
            if counts[index] != count:
                rows[index, counts[index] : count] = blocks[counts[index] :]
                counts[index] = count
            if count > width:
                width = count
        return rows[: len(scheduled), :width]
