"""The command line of benchmarks that come in parts: which of them, how many rounds, whole or tiny."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping

from loraplex.engine.processes.spawn import MEMORY

from .report import Row, publish, show
from .scale import Scale, tiny

Part = Callable[[Scale], list[Row]]


def run_parts(description: str | None, prefix: str, parts: Mapping[str, Part]) -> None:
    """Each part asked for is shown, and kept as `prefix`-`name` unless it is tiny."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(parts), default=list(parts))
    parser.add_argument("--tiny", action="store_true", help="small and fast, to see that it works; writes no result")
    arguments = parser.parse_args()
    _have_the_engines_memory()
    notes = {"rounds": arguments.rounds, "cores": len(os.sched_getaffinity(0))}
    for name in arguments.only:
        if arguments.tiny:
            show(f"{prefix}-{name}, tiny", parts[name](tiny(arguments.rounds)))
        else:
            print(publish(f"{prefix}-{name}", parts[name](Scale(rounds=arguments.rounds)), notes))


def _have_the_engines_memory() -> None:
    """Begin again as the engine's process is started, on huge pages: allocators read this as a process begins."""
    if not MEMORY.keys() & os.environ.keys():
        os.execve(sys.executable, sys.orig_argv, os.environ | MEMORY)
