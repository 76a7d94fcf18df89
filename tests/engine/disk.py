"""A disk of a few bytes."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest


def fill_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, capacity: int) -> None:
    """From now on the disk holds as many bytes, and nothing but the files of the folder."""

    def usage(path: Path) -> SimpleNamespace:
        taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        return SimpleNamespace(total=capacity, used=taken, free=capacity - taken)

    monkeypatch.setattr(shutil, "disk_usage", usage)
