"""Long campaigns of random cases: each run takes a part of them, `make campaign` takes them all.

CAMPAIGN_SEED chooses the part; unset, it is the day. CAMPAIGN=whole takes all parts.
"""

import datetime
import os
from dataclasses import dataclass
from typing import Final, Self

WHOLE: Final = "CAMPAIGN"
SEED: Final = "CAMPAIGN_SEED"


def choose_seed() -> None:
    """Set the seed for this process and all it starts: they must agree, also about midnight."""
    os.environ.setdefault(SEED, f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")


@dataclass(frozen=True)
class Campaign:
    seed: int
    whole: bool

    @classmethod
    def from_environment(cls) -> Self:
        return cls(int(os.environ[SEED]), os.environ.get(WHOLE) == "whole")

    def part(self, count: int, parts: int) -> range:
        """The numbers below `count` to try: every `parts`-th, or all of them."""
        return range(count) if self.whole else range(self.seed % parts, count, parts)

    def enough(self, least: int, parts: int) -> int:
        """How often something rare must be seen, which all cases see `least` times: parts differ by chance."""
        return least if self.whole else least // (2 * parts)

    def command(self, test: str) -> str:
        """Runs the same cases again. `test`: its node id."""
        whole = f"{WHOLE}=whole " if self.whole else ""
        return f"{SEED}={self.seed} {whole}.venv/bin/python -m pytest '{test}'"
