"""All figures in the order in which they are measured, and how long each part may take."""

from typing import Final

from . import attention, card, engine, linears, lora, small
from .figure import Figure
from .size import Size

QUICK_SECONDS: Final = {"card": 25.0, "attention": 110.0, "lora": 70.0, "linears": 170.0, "small": 60.0, "engine": 5.0}
"""Together seven minutes and twenty seconds: starting and the last figure of a part have the rest of eight."""


def parts(size: Size) -> dict[str, list[Figure]]:
    return {
        "card": card.figures(),
        "attention": attention.figures(size),
        "lora": lora.figures(size),
        "linears": linears.figures(size),
        "small": small.figures(size),
        "engine": engine.figures(),
    }
