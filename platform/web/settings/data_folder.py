"""The folder that holds all that the platform keeps."""

import os
from pathlib import Path


def prepare_data_folder(folder: Path) -> None:
    """Make it, for this user alone. ValueError when it cannot be made or written."""
    remedy = "Name a folder that this user can write to: --data-dir or LORAPLEX_DATA_DIR"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ValueError(f"data_dir {folder} cannot be created: {error.strerror}. {remedy}") from error
    if folder.stat().st_mode & 0o002:
        raise ValueError(f"everyone on this machine can write to data_dir {folder}. Restrict it: chmod o-w {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"data_dir {folder} cannot be written by this user. {remedy}")
