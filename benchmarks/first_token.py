"""When the first token comes, beside an earlier commit: python -m benchmarks.first_token REVISION [--requests 500]

Both servers run at once and are asked in turn, the demo's model, one stream at a time. A commit before the limits of
HTTP heads: 14498fe9^.
"""

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from loraplex.web.settings.settings import DEMO_MODEL

from .client import Client
from .report import Row, show
from .server import ROOT, serving

GOAL_MS: Final = 0.5
"""More than the earlier commit takes."""
BODY: Final = {"model": "demo", "prompt": "Hello", "max_tokens": 2}


def measure(revision: str, requests: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each first token: of `revision`, and of this checkout."""
    with tempfile.TemporaryDirectory(prefix="loraplex-bench-") as folder:
        earlier = Path(folder) / "earlier"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", earlier, revision], cwd=ROOT, check=True)
        try:
            with (
                serving(DEMO_MODEL, {}, earlier, served_name="demo") as before,
                serving(DEMO_MODEL, {}, served_name="demo") as now,
            ):
                clients, taken = (Client(before), Client(now)), (list[float](), list[float]())
                for turn in range(requests):
                    for side in (0, 1) if turn % 2 else (1, 0):
                        taken[side].append(clients[side].first_token_ms(BODY))
            return taken
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", earlier], cwd=ROOT, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the earlier commit")
    parser.add_argument("--requests", type=int, default=500, help="of each server")
    chosen = parser.parse_args()
    before, now = measure(chosen.revision, chosen.requests)
    medians = statistics.median(before), statistics.median(now)
    show(
        "first token",
        [
            Row(f"{chosen.revision}: median of {len(before)}", medians[0], "ms"),
            Row(f"this checkout: median of {len(now)}", medians[1], "ms"),
            Row("later by", medians[1] - medians[0], "ms", GOAL_MS, at_least=False),
        ],
    )


if __name__ == "__main__":
    main()
