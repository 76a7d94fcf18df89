"""All figures in the order in which they are measured, and how long each part may take."""

from pathlib import Path
from typing import Final

import torch

from . import attention, card, delta, engine, experts, families, kinds, linears, lora, small
from .clock import GraphClock
from .figure import Figure, Stage
from .models import use_workplaces
from .size import Size

GROUPS: Final = {
    "llama": ("card", "engine", "attention", "lora", "linears", "small"),
    "families": ("kinds", "delta", "families"),
    "experts": ("experts", "mixtures"),
}
"""Parts that one run measures: Llama's, or what other families have besides."""
QUICK_SECONDS: Final = {
    "card": 12.0, "engine": 322.0, "attention": 37.0, "lora": 18.0, "linears": 31.0, "small": 10.0,
    "kinds": 70.0, "delta": 40.0, "families": 310.0, "experts": 240.0, "mixtures": 120.0,
}  # fmt: skip
"""Seven minutes for each group: opening each part's process and the last figure of each have the rest of eight. Those
of other families than Llama's are predicted."""
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
        "kinds": kinds.figures(size),
        "delta": delta.figures(size),
        "families": families.figures(size, size.families),
        "experts": experts.figures(size),
        "mixtures": families.figures(size, size.mixture_models),
    }


def open_part(name: str, rounds: int, folders: tuple[Path, ...], size: Size) -> tuple[list[Figure], Stage]:
    """In the process that measures it, which cannot find what is in __main__.py. `folders`: for checkpoints."""
    use_workplaces(folders)
    return parts(size)[name], Stage(torch.device("cuda"), GraphClock(rounds), size)
