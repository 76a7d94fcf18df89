"""Every CUDA kernel on this machine's GPU: checked at full size, then timed beside what the card itself can do.

    python -m benchmarks.gpu --quick|--full [--families] [--only PART ...]

Needs a checkout, torch, triton and numpy; rows of the engine also safetensors, transformers and peft. --quick is done
within eight minutes. --families measures what other families have besides Llama's: kinds of attention, the gated delta
net (beside flash-linear-attention where that is installed), engines. Each row is printed and written to
benchmarks/results/gpu-quick.json (gpu-full.json, gpu-quick-families.json) as it is measured. Each part has a process of
its own, which is begun again behind a row that ended or hung it. Exit status: 0, 1 where a result was wrong or a kernel
failed, 2 without a CUDA device or a C compiler.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from loraplex.engine.device.launcher_tools import REMEDY, missing_tools

from ..report import RESULTS, Row, line_of, write
from .apart import measure_apart, start_server
from .card import describe
from .catalog import GROUPS, QUICK_SECONDS, QUICK_TOTAL_SECONDS, open_part, parts
from .figure import Figure
from .models import workplaces
from .size import FULL, QUICK
from .table import SUFFIXES

FULL_SECONDS_RATIO = 5
ROUNDS = {"quick": 10, "full": 50}
SIZES = {"quick": QUICK, "full": FULL}
MeasurePart = Callable[[str, Sequence[Figure], float, Callable[[Row], None]], int]
"""Name, figures, seconds and who gets the rows -> how many are wrong or failed."""


def run(
    measure_part: MeasurePart, chosen: dict[str, list[Figure]], seconds: dict[str, float], path: Path,
    notes: dict[str, object], total_seconds: float = math.inf,
) -> int:  # fmt: skip
    """Measure the parts one after another; returns the exit status."""
    end = time.monotonic() + total_seconds
    rows: list[Row] = []

    def publish(row: Row) -> None:
        rows.append(row)
        print(line_of(row), flush=True)
        write(path, rows, notes)

    broken = 0
    for name, figures in chosen.items():
        began, estimate = time.monotonic(), sum(figure.seconds for figure in figures)
        about = f"about {estimate:.0f} s, " if estimate else ""
        allowed = max(0.0, min(seconds[name], end - began))
        print(f"-- {name}: {len(figures)} figures, {about}at most {allowed:.0f} s", flush=True)
        broken += measure_part(name, figures, allowed, publish)
        print(f"-- {name} took {time.monotonic() - began:.0f} s", flush=True)
    print(
        f"{path}: {sum(row.value is not None for row in rows)} of {len(rows)} rows measured, {broken} wrong or failed"
    )
    return 1 if broken else 0


def main(find_device: Callable[[], bool] = torch.cuda.is_available) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--quick", dest="length", action="store_const", const="quick", help="within eight minutes")
    length.add_argument("--full", dest="length", action="store_const", const="full", help="more rounds, more time")
    parser.set_defaults(group="llama")
    for name, what in (("families", "what other families have"), ("experts", "mixtures of experts")):
        parser.add_argument(
            f"--{name}", dest="group", action="store_const", const=name, help=f"{what}, instead of Llama's parts"
        )
    parser.add_argument("--only", nargs="+", choices=list(QUICK_SECONDS), metavar="PART")
    arguments = parser.parse_args()
    group = GROUPS[arguments.group]
    only = arguments.only or group
    size = SIZES[arguments.length]
    every = parts(size)
    if not find_device():
        print("no CUDA device: torch.cuda.is_available() is false, so that nothing was measured", file=sys.stderr)
        return 2
    tools = missing_tools()
    if tools:
        print(f"Triton lacks {' and '.join(tools)}: nothing was measured. {REMEDY}", file=sys.stderr)
        return 2
    ratio = FULL_SECONDS_RATIO if arguments.length == "full" else 1
    seconds = {name: ratio * allowed for name, allowed in QUICK_SECONDS.items()}
    rounds = ROUNDS[arguments.length]
    notes = describe(torch.device("cuda")) | {"rounds": rounds}
    chosen = {name: every[name] for name in every if name in only}
    chosen_words = SUFFIXES[arguments.group] if list(chosen) == list(group) else "-" + "-".join(chosen)
    path = RESULTS / f"gpu-{arguments.length}{chosen_words}.json"
    start_server()
    with workplaces() as folders:

        def measure_part(name: str, figures: Sequence[Figure], allowed: float, publish: Callable[[Row], None]) -> int:
            return measure_apart(partial(open_part, name, rounds, folders, size), figures, allowed, publish)

        return run(measure_part, chosen, seconds, path, notes, ratio * QUICK_TOTAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
