"""Whom a new version answers from the moment it is registered."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ..errors import InvalidRoute
from .routes import REQUEST, ShareBy

Mode = Literal["inactive", "share", "live"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class Activation:
    """`inactive`: the name goes on meaning what it means; `live`: it means the new version; `share`: the new version
    answers so many `percent` of the requests or callers."""

    mode: Mode
    percent: int = 10
    share_by: ShareBy = REQUEST

    def __post_init__(self) -> None:
        """Raises InvalidRoute."""
        if self.mode not in MODES:
            raise InvalidRoute(f"activate must be one of {', '.join(MODES)}; got {str(self.mode)[:40]!a}.", "activate")
        if not 1 <= self.percent <= 99:
            raise InvalidRoute(f"percent must be 1 to 99; got {self.percent}.", "percent")
