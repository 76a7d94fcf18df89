"""All figures in the order in which they are measured, and how long each part may take."""

from typing import Final

from . import attention, card, engine, linears, lora, small
from .figure import Figure
from .size import Size

QUICK_SECONDS: Final = {"card": 12.0, "engine": 322.0, "attention": 37.0, "lora": 18.0, "linears": 31.0, "small": 10.0}
"""Together seven minutes: opening each part's process and the last figure of each have the rest of eight."""
QUICK_TOTAL_SECONDS: Final = 460.0
"""After which no part is begun and the one that runs is ended."""


def parts(size: Size) -> dict[str, list[Figure]]:
    return {
        "card": card.figures(),
        "engine": engine.figures(size),
        "attention": attention.figures(size),
        "lora": lora.figures(size),
        "linears": linears.figures(size),
        "small": small.figures(size),
    }
