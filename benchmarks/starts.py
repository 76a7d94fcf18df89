"""How long a server takes from its command to readiness, on a model of 0.5B dimensions: python -m benchmarks.starts

The first start in a data folder packs the weights, and compiles kernels where this machine has none yet. Those after it
are told apart: alone, and beside a process that keeps one core busy.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from .checkpoints import HALF_BILLION, base_checkpoint
from .report import Row, show
from .server import serving

QUIET_GOAL: Final = 5.0
BUSY_GOAL: Final = 8.0


def keep_busy() -> None:
    while True:
        pass


def start_seconds(model: Path, data_dir: Path) -> float:
    started = time.perf_counter()
    with serving(model, {}, data_dir=data_dir):
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    model = base_checkpoint(HALF_BILLION)
    with tempfile.TemporaryDirectory() as folder:
        first = start_seconds(model, Path(folder))
        alone = [start_seconds(model, Path(folder)) for _ in range(chosen.rounds)]
        busy = multiprocessing.get_context("spawn").Process(target=keep_busy, daemon=True)
        busy.start()
        beside = [start_seconds(model, Path(folder)) for _ in range(chosen.rounds)]
        busy.terminate()
    show(
        "starts",
        [
            Row("first start in a data folder", first, "s"),
            Row("start after it", statistics.median(alone), "s", QUIET_GOAL, at_least=False),
            Row("the same beside a busy core", statistics.median(beside), "s", BUSY_GOAL, at_least=False),
        ],
    )


if __name__ == "__main__":
    main()
