"""Runners, and the steps they were given that have not been committed yet."""

from collections import deque
from traceback import clear_frames
from typing import Protocol

from ..scheduler.plan import StepPlan, StepResult


class StepHandle(Protocol):
    """A submitted step."""

    def result(self) -> StepResult:
        """Wait for its end. Asked once, in the order of submission. What went wrong is raised here or by `submit`."""


class Runner(Protocol):
    """On a CPU (`runner.py`) a submitted step is over. On CUDA (`cuda_runner.py`) two steps may be in flight."""

    depth: int
    """Steps that may be in flight: 1, or 2 where a device computes one while the host plans the next."""

    def submit(self, plan: StepPlan) -> StepHandle:
        """Begin to copy blocks, compute the scheduled tokens and draw the next ones; steps run in this order.

        Leaves the sequences as they are, and reads of them, their blocks and rows now all that it needs. The last token
        of a sequence may be a placeholder: past its token_ids, and what the step before drew for it.
        An exception ends the requests of this plan and no others.
        """


class StepsInFlight:
    """First in, first out."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        assert self._runner.depth in (1, 2), "a placeholder is what the step just before drew"
        self._steps: deque[tuple[StepPlan, StepHandle]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def full(self) -> bool:
        return len(self._steps) >= self._runner.depth

    def begin(self, plan: StepPlan) -> None:
        assert not self.full
        try:
            handle = self._runner.submit(plan)
        except Exception as error:
            # What it had allocated until then is for the steps that are submitted before its turn comes.
            clear_frames(error.__traceback__)
            handle = Failed(error)
        self._steps.append((plan, handle))

    def take(self) -> tuple[StepPlan, StepHandle]:
        """The oldest; it is in flight no more."""
        return self._steps.popleft()


class Ended:
    """It was computed while it was submitted."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class Failed:
    """It could not even be submitted; that shows when its turn comes."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> StepResult:
        raise self._error
