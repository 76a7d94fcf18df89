"""computing_here: what a model is computed with on this machine, for who asks without an engine."""

from pathlib import Path

from ..config import EngineConfig
from ..model.config import ModelConfig
from .computing import Computing


def computing_here(config: EngineConfig) -> Computing:
    """That of an engine with these settings. ValueError for a device that is not there.

    Loads torch and the compiler, which takes a moment: the API process asks its engine.
    """
    from .device import find_computing

    return find_computing(config, ModelConfig.from_folder(Path(config.model)))
