"""Which checkpoint is this: a digest that is cheap enough to take at every start."""

import hashlib
from pathlib import Path
from typing import Final

from ..folder import FOLDED_SCALES

SAMPLES: Final = 64
SAMPLE_BYTES: Final = 1 << 16


def fingerprint_weights(folder: Path, identity: str) -> str:
    """SHA-256 over `identity` and, of each safetensors file, its name, its size and SAMPLES evenly spaced pieces.

    The first piece holds the header's beginning: names, types and shapes. Sampling reads at most 4 MiB of a file, so a
    checkpoint of any size takes milliseconds; a fine-tune, which moves nearly every weight, gets another fingerprint.
    """
    digest = hashlib.sha256(identity.encode())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for offset in _sample_offsets(size):
                file.seek(offset)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def checkpoint_identity(folder: Path) -> str:
    """For what is kept of a checkpoint beyond a start: its fingerprint, when its weights were last written, because
    that may have been where no sample is taken, and all of the JSON beside them."""
    digest = hashlib.sha256(fingerprint_weights(folder, "").encode())
    for path in sorted([*folder.glob("*.safetensors"), folder / FOLDED_SCALES]):
        if path.is_file():
            facts = path.stat()
            digest.update(f"\0{path.name}\0{facts.st_size}\0{facts.st_mtime_ns}".encode())
    for path in sorted(folder.glob("*.json")):
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def put_there(folder: Path) -> str:
    """When each file of weights came to be as it is, by a clock that no copy sets back as it does the time of writing.
    For what is made anew in seconds: moving a checkpoint changes it as well."""
    return " ".join(str(path.stat().st_ctime_ns) for path in sorted(folder.glob("*.safetensors")))


def _sample_offsets(size: int) -> range:
    return range(0, max(size, 1), max(SAMPLE_BYTES, size // SAMPLES))
