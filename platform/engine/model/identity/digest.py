"""Which model is this, to the last byte: what a certificate names. No torch.

`fingerprint.py` reads samples and takes milliseconds; this reads all files, which takes seconds for each 10 GB.
"""

import hashlib
from pathlib import Path
from typing import Final

from ..folder import FOLDED_SCALES

DECIDING: Final = (
    "config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    FOLDED_SCALES,
)
"""Files beside the weights that decide which tensors and tokens are read, and what is computed of them."""


def model_digest(folder: Path) -> str:
    """SHA-256 of every byte that decides what a model answers. OSError where a file cannot be read.

    Adapters are bound to less, so that a corrected tokenizer does not turn them away.
    """
    digest = hashlib.sha256()
    for path in deciding_files(folder):
        with path.open("rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder)}\0{own}\0".encode())
    return digest.hexdigest()


def files_state(folder: Path) -> str:
    """Another one as soon as one of those files is written, replaced, added or gone, for the cost of a look at each.
    OSError as above."""
    facts = [(path.relative_to(folder), path.stat()) for path in deciding_files(folder)]
    return "\n".join(f"{name} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns} {at.st_ino}" for name, at in facts)


def state_digest(folder: Path) -> str:
    """SHA-256 of `files_state`; of files that are gone, or cannot be looked at, an empty word."""
    try:
        return hashlib.sha256(files_state(folder).encode()).hexdigest()
    except OSError:
        return ""


def deciding_files(folder: Path) -> list[Path]:
    """Those that are there, in an order that does not change."""
    return sorted([*folder.glob("*.safetensors"), *(folder / name for name in DECIDING if (folder / name).is_file())])
