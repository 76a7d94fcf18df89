"""StatePool: the slots of recurrent states, of models that have such layers.

A KV block holds some tokens; a state stands for all tokens up to one position. So a running sequence holds one slot,
however long it is, and a copy of its state (a *snapshot*) is found by the key of the block that ends at its position:
the same chain of hashes as that of KV blocks. A prefix is cached as far as its blocks are, and a snapshot at their end.
"""

from collections.abc import Sequence
from typing import ClassVar

from .keyed_pool import KeyedPool
from .prefix import BlockKey


class StatePool(KeyedPool):
    NAME: ClassVar[str] = "state"

    def __init__(self, num_slots: int) -> None:
        if num_slots < 2:
            raise ValueError(f"there is room for {num_slots} states and at least 2 are needed; give them more memory")
        super().__init__(num_slots)
        self.num_slots = num_slots

    def latest(self, keys: Sequence[BlockKey]) -> tuple[int, int | None]:
        """How many of the keys, from the first on, lead to the last snapshot among them, and its slot; 0 and None
        without one."""
        for count in range(len(keys), 0, -1):
            slot = self.find(keys[count - 1])
            if slot is not None:
                return count, slot
        return 0, None

    def adopt(self, slot: int) -> None:
        """Hold a snapshot that nobody holds, to go on in its place: it is found no more."""
        self.share([slot])
        self.forget([slot])

    def withdraw(self, key: BlockKey) -> None:
        """Never find the snapshot of this key again, if there is one."""
        slot = self.find(key)
        if slot is not None:
            self.share([slot])
            self.forget([slot])
            self.free([slot])
