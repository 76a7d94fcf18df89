"""The engine process with a runner that fails as a device does: test_faults.py starts it in place of the engine's own.

Its arguments are those of `python -m loraplex.engine.process DESCRIPTOR`; FAULTS names a folder whose files, each named
as an error of torch, are raised by the next step with more than one sequence, once each.
"""

import os
import sys
from pathlib import Path

import torch

from loraplex.engine import process
from loraplex.engine.plan import StepPlan
from loraplex.engine.runner import ModelRunner
from loraplex.engine.steps import Ended

FAULTS = "LORAPLEX_TEST_FAULTS"


def main() -> None:
    submit = ModelRunner.submit

    def failing(runner: ModelRunner, plan: StepPlan) -> Ended:
        if len(plan.scheduled) > 1:
            for fault in Path(os.environ[FAULTS]).iterdir():
                fault.unlink()
                raise getattr(torch, fault.name)(f"CUDA says: {fault.name}\nand much more")
        return submit(runner, plan)

    ModelRunner.submit = failing  # type: ignore[method-assign]
    sys.argv = [sys.argv[0], sys.argv[-1]]
    process.main()


if __name__ == "__main__":
    main()
