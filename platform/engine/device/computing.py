"""Computing: what a model is computed with, by name. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Computing:
    """What decides the last bits of a model's answers, beside the model and how it is stored."""

    arithmetic: str
    """As EngineInfo.arithmetic."""
    runtime: dict[str, str]
    """As EngineInfo.runtime."""
