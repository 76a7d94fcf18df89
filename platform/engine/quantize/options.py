"""What a user may ask of `loraplex quantize`. No torch: the command line reads its defaults here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CALIBRATION_TOKENS: Final = 32768
VERSION: Final = 2
"""Of what is written: one more whenever the same model and options would come out otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """None: the scheme's own default."""

    scheme: str
    group_size: int | None = None
    symmetric: bool | None = None
    fold: bool | None = None
    activation_order: bool | None = None
    calibration: Path | None = None
    """A text file; None for text of our own."""
    calibration_tokens: int = CALIBRATION_TOKENS
    """Held-out ones counted."""
    device: str = "cpu"
    """cpu or cuda."""
