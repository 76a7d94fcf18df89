"""LoadedFiles: in which state an engine found the files that certificates name. No certificate holds for others."""

from pathlib import Path

from .config import EngineConfig
from .model.digest import state_digest


class LoadedFiles:
    """Made before they are read."""

    def __init__(self, config: EngineConfig) -> None:
        self._folder = Path(config.model)
        self._base = state_digest(self._folder)

    def base(self) -> str:
        """As of EngineInfo.base_files; asked when all has been read."""
        return _told(self._base, state_digest(self._folder))


def _told(before: str, after: str) -> str:
    return before if before == after else f"{before} {after}"
