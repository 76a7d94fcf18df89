"""arithmetic_here: what linears are multiplied with on this machine, for who asks without an engine."""

from pathlib import Path

from .config import EngineConfig
from .model.config import ModelConfig


def arithmetic_here(config: EngineConfig) -> str:
    """As EngineInfo.arithmetic of an engine with these settings. ValueError for a device that is not there.

    Loads torch and the compiler, which takes a moment: the API process asks its engine.
    """
    from .device import find_arithmetic

    return find_arithmetic(config, ModelConfig.from_folder(Path(config.model)))
