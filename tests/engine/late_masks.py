"""LateMasks: in the place of `GrammarManager`. Constrained choices may draw anything, and learn so when chance says."""

from collections.abc import Iterable
from random import Random

from loraplex.engine.constraints.counts import Counts
from loraplex.engine.constraints.grammar_manager import Failure
from loraplex.engine.protocol import GenerateRequest
from loraplex.engine.scheduler.plan import Scheduled
from loraplex.engine.scheduler.sequence import Request, Sequence, Status

from .fake_model import VOCAB

ALL = b"\xff" * (VOCAB // 8 + 1)


class LateMasks:
    def __init__(self, random: Random, chance: float) -> None:
        """`chance`: that a mask comes between two steps."""
        self._random, self._chance = random, chance
        self._followed: list[Sequence] = []
        self.counts = Counts([])

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def waited_for(self) -> bool:
        self.drop_ended()
        return any(sequence.lacks_mask for sequence in self._followed)

    def check(self, message: GenerateRequest) -> None:
        """All constraints are good."""

    def follow(self, request: Request) -> None:
        if request.message.params.structured_outputs is not None:
            self._followed += request.sequences

    def advance(self, items: Iterable[Scheduled]) -> None:
        """What was drawn tells nothing."""

    def collect(self) -> list[Failure]:
        self.drop_ended()
        for sequence in self._followed:
            mask = sequence.row.mask
            if mask is not None and mask.bits is None and self._random.random() < self._chance:
                mask.learn(ALL, True, sequence.row.position)
        return []

    def drop_ended(self) -> None:
        self._followed = [sequence for sequence in self._followed if sequence.status is not Status.FINISHED]

    def close(self) -> None:
        """There is no process."""
