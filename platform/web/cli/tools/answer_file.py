"""Where `run-batch` writes. A file appears under its name when all of it is there; a device, a pipe or standard output
is written line by line."""

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from .request_file import STANDARD_INPUT

STANDARD_OUTPUT: Final = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
FAILURES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})
"""Of writing."""
OPEN_ALREADY: Final = ("/dev/fd/", "/dev/std", "/proc/")
"""Beginnings of paths that mean what a process has open, also where that is a file."""


def check_files(source: str, target: str) -> None:
    """ValueError for what cannot be read or written, before anything is."""
    for path, remedy in ((source, "Download the requests first"), (target, "Upload the answers afterwards")):
        if "://" in path:
            raise ValueError(f"{path} is no file of this machine. {remedy}")
    if source not in STANDARD_INPUT and (not Path(source).exists() or Path(source).is_dir()):
        raise ValueError(f"there is no file {source}")
    folder = Path(target).resolve().parent
    if target in STANDARD_OUTPUT:
        if sys.stdout is None:
            raise ValueError("standard output is closed")
        written: os.stat_result | None = os.fstat(1)
    elif Path(target).is_dir():
        raise ValueError(f"{target} is a folder; the answers need a file")
    elif not folder.is_dir():
        raise ValueError(f"there is no folder {folder} for the answers")
    else:
        written = Path(target).stat() if Path(target).exists() else None
    read = os.fstat(0) if source in STANDARD_INPUT else Path(source).stat()
    if written is not None and stat.S_ISREG(read.st_mode) and os.path.samestat(written, read):
        raise ValueError(f"{target} is the input file {source}; the answers need a file of their own")


@contextmanager
def opened_for_answers(target: str) -> Iterator[BinaryIO]:
    """To write to in the block. A file that was there is replaced when the block has ended well. ValueError where
    nothing can be written, or no more."""
    try:
        with ExitStack() as stack:
            try:
                file = stack.enter_context(_opened(target))
            except OSError as error:
                raise _unwritable(target, error) from None
            yield file
    except OSError as error:
        if error.errno not in FAILURES:
            raise
        raise _unwritable(target, error) from None


def _unwritable(target: str, error: OSError) -> ValueError:
    return ValueError(f"{target} cannot be written: {error.strerror}")


def _opened(target: str) -> AbstractContextManager[BinaryIO]:
    if target in STANDARD_OUTPUT:
        return _standard_output()
    return _straight(target) if _is_open_or_special(target) else _whole(Path(target).resolve())


def _is_open_or_special(target: str) -> bool:
    path = Path(target)
    return path.exists() and (not path.is_file() or str(path.absolute()).startswith(OPEN_ALREADY))


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    """For the answers alone: what else is printed, here or by the engine process, goes to standard error."""
    with os.fdopen(os.dup(1), "wb") as file:
        os.dup2(2, 1)
        try:
            yield file
        finally:
            os.dup2(file.fileno(), 1)


@contextmanager
def _straight(target: str) -> Iterator[BinaryIO]:
    """Appended, since what is open already may have content."""
    with Path(target).open("ab") as file:
        yield file


@contextmanager
def _whole(target: Path) -> Iterator[BinaryIO]:
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
