"""`loraplex backup` and `loraplex restore`."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, BinaryIO, Literal

import typer

from ...backup import restore_backup, sqlite_file, write_backup
from ...settings.settings import Settings
from ..settings_here import settings_here

STANDARD = "-"


def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new tar file; - writes to standard output.")],
) -> None:
    """Write database, adapters and credentials to one file; the server may be running."""
    settings = settings_here()
    if sqlite_file(settings) is None:
        _tell("This file does not contain the PostgreSQL database. Dump it first with pg_dump (docs/deploy.md).")
    with _opened(file, sys.stdout.buffer, "xb") as target:
        names = write_backup(settings, target)
    _tell(f"{len(names)} files saved. They contain all secrets of the server: keep them private.")


def restore(file: Annotated[str, typer.Argument(metavar="FILE", help="A backup; - reads standard input.")]) -> None:
    """Unpack a backup into the data folder, which must be empty."""
    settings = Settings()
    with _opened(file, sys.stdin.buffer, "rb") as source:
        names = restore_backup(settings, source)
    _tell(f"{len(names)} files restored to {settings.data_dir}.")


def _opened(file: str, standard: BinaryIO, mode: Literal["xb", "rb"]) -> AbstractContextManager[BinaryIO]:
    if file == STANDARD:
        return nullcontext(standard)
    try:
        return open(file, mode, opener=_private)  # Path.open takes no opener
    except OSError as error:
        remedy = "another" if mode == "xb" else "an existing"
        raise ValueError(f"{file}: {error.strerror}. Name {remedy} file") from None


def _private(path: str, flags: int) -> int:
    """For this user alone, from the first byte on."""
    return os.open(path, flags, 0o600)


def _tell(words: str) -> None:
    """Standard output may be the backup."""
    print(words, file=sys.stderr)
