"""What is kept from one start to the next: where, and which state of our own sources made it."""

import hashlib
import os
from pathlib import Path
from typing import Final

PACKAGES: Final = Path(__file__).resolve().parent.parent


def user_cache() -> Path:
    """Our folder among this user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "loraplex"


def sources_digest(*patterns: str) -> str:
    """Of the files that the patterns find below the packages' folder: another one with any change of theirs."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for file in sorted(PACKAGES.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
