"""A seal on a kept checkpoint: what its files were when it was written. One that was changed or cut off since, by
whatever, is not served."""

import json
from pathlib import Path
from typing import Final

from ..model.folder import FOLDED_SCALES
from ..model.identity.digest import files_state, model_digest

SEAL: Final = str(Path(FOLDED_SCALES).with_name("seal.json"))


def seal(folder: Path) -> None:
    """OSError where the folder cannot be written."""
    path = folder / SEAL
    path.parent.mkdir(exist_ok=True)
    said = {"files": files_state(folder), "digest": model_digest(folder)}
    path.write_text(json.dumps(said) + "\n", "utf-8")


def is_sealed(folder: Path) -> bool:
    """Whether all is as it was. Files are read only where a look at them tells that they were touched, or copied."""
    try:
        said = json.loads((folder / SEAL).read_text("utf-8"))
        return bool(files_state(folder) == said["files"] or model_digest(folder) == said["digest"])
    except (OSError, ValueError, TypeError, KeyError):
        return False
