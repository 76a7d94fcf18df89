"""All figures in the order in which they are measured, and how long each part may take."""

from typing import Final

from . import attention, card, engine, linears, lora, small
from .figure import Figure
from .size import Size

QUICK_SECONDS: Final = {"card": 15.0, "engine": 255.0, "attention": 55.0, "lora": 25.0, "linears": 65.0, "small": 25.0}
"""Together seven minutes and twenty seconds: starting and the last figure of a part have the rest of eight."""


def parts(size: Size) -> dict[str, list[Figure]]:
    return {
        "card": card.figures(),
        "engine": engine.figures(size),
        "attention": attention.figures(size),
        "lora": lora.figures(size),
        "linears": linears.figures(size),
        "small": small.figures(size),
    }
