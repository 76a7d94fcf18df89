"""The engine process with a runner that fails as a device does, hangs, or takes long: tests start it in place of the
engine's own.

Its arguments are those of `python -m loraplex.engine.ipc.process DESCRIPTOR`. FAULTS names a folder. Each of its files
is one fault of the next step with more than one sequence: an error of torch, or one of WAYS.
"""

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from numba import njit

from loraplex.engine.ipc import process
from loraplex.engine.kernels import one_compiler
from loraplex.engine.runner.runner import ModelRunner
from loraplex.engine.runner.steps import Ended
from loraplex.engine.scheduler.plan import StepPlan

from .conftest import FAULTS

LONG_SECONDS: Final = 14.0
"""More than a process may wait in silence."""


def hang() -> None:
    threading.Event().wait()


def compute() -> None:
    end = time.monotonic() + LONG_SECONDS
    while time.monotonic() < end:
        hashlib.sha256(bytes(1 << 20))


def compile_behind_another_process() -> None:
    @njit(cache=True)
    def kernel(x: int) -> int:
        return x + 1

    def wait(*_place: object) -> bool:
        time.sleep(LONG_SECONDS)
        return True

    one_compiler._wait = wait
    kernel(1)


WAYS: Final[dict[str, Callable[[], None]]] = {
    way.__name__: way for way in (hang, compute, compile_behind_another_process)
}


def main() -> None:
    submit = ModelRunner.submit

    def failing(runner: ModelRunner, plan: StepPlan) -> Ended:
        if len(plan.scheduled) > 1:
            for fault in Path(os.environ[FAULTS]).iterdir():
                fault.unlink()
                if fault.name not in WAYS:
                    raise getattr(torch, fault.name)(f"CUDA says: {fault.name}\nand much more")
                WAYS[fault.name]()
        return submit(runner, plan)

    ModelRunner.submit = failing  # type: ignore[method-assign]
    sys.argv = [sys.argv[0], sys.argv[-1]]
    process.main()


if __name__ == "__main__":
    main()
