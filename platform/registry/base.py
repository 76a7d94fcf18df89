"""The base model that this server serves, as far as adapters care."""

from dataclasses import dataclass
from pathlib import Path

from loraplex.lora.files.manifest import BaseSignature


@dataclass(frozen=True, slots=True)
class ServedBase:
    name: str
    """What clients call it; no adapter may have this name, or one of the others."""
    signature: BaseSignature
    model: str = ""
    """What adapters call the model they were trained on, a path or hub id; empty: it is not compared."""
    folder: Path | None = None
    """Where its files are; needed to compare tokenizers and weights with its own."""
    other_names: tuple[str, ...] = ()
    """What clients may call it, too."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.other_names)
