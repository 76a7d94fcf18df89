"""LoadedFiles: what an engine found in files that certificates name. None holds beside one that found others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..config import EngineConfig
from ..model.config import ModelConfig
from ..model.identity.digest import state_digest
from ..model.served import kv_cache_words


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    base: str
    """As EngineInfo.base_files."""
    kv_cache: str
    """As EngineInfo.kv_cache_files."""

    @classmethod
    def seen(cls, config: EngineConfig) -> Self:
        """As they are now. ValueError for those that cannot be read."""
        folder = Path(config.model)
        return cls(state_digest(folder), kv_cache_words(ModelConfig.from_folder(folder), config))

    def until(self, end: Self) -> Self:
        """Of what was read between two looks: where these differ it is neither."""
        return type(self)(_both(self.base, end.base), _both(self.kv_cache, end.kv_cache))


def _both(before: str, after: str) -> str:
    return before if before == after else f"{before}; {after}"
