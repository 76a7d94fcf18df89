"""An adapter in a folder of this machine, which must lie below one of those that the operator has allowed."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Final, NoReturn

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE

from .errors import SourceFailed, SourceMissing, SourceRefused

REMEDY: Final = "The operator can allow folders with adapter_folders or LORAPLEX_ADAPTER_FOLDERS."
UNLINKED: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def open_adapter(folder: str, allowed: Sequence[Path], optional: Iterable[str]) -> Iterator[dict[str, BufferedReader]]:
    """Configuration, weights and the `optional` files that are there, open for reading. `folder` is an absolute path.

    Raises SourceRefused, SourceMissing, SourceFailed. Of a folder that is not allowed it does not even tell whether it
    exists.
    """
    _check_path(folder, allowed)
    with ExitStack() as stack:
        files = {name: stack.enter_context(_open(folder, name, allowed)) for name in (CONFIG_FILE, WEIGHTS_FILE)}
        for name in optional:
            with suppress(SourceMissing):
                files[name] = stack.enter_context(_open(folder, name, allowed))
        yield files


def _check_path(folder: str, allowed: Sequence[Path]) -> None:
    if not allowed:
        raise SourceRefused(f"This server does not load adapters from folders. {REMEDY}")
    if "\0" in folder or not folder.startswith("/"):
        raise SourceRefused(
            f"{folder!a} is not an absolute path. Give the full path of the adapter's folder, starting with /."
        )
    if ".." in Path(folder).parts:
        raise SourceRefused(f"'..' in {folder!a} is not followed. Give the path of the adapter's folder without it.")


def _open(folder: str, name: str, allowed: Sequence[Path]) -> BufferedReader:
    """One file, after every link on its way was followed and led to an allowed folder."""
    path = os.path.realpath(Path(folder, name))
    roots = [os.path.realpath(root) for root in allowed]
    root = next((root for root in roots if Path(path).is_relative_to(root)), None)
    if root is None:
        _refuse(folder, [*allowed, *map(Path, roots)])
    try:
        descriptor = _descend(root, Path(path).relative_to(root).parts)
    except (FileNotFoundError, NotADirectoryError):
        raise SourceMissing from None
    except OSError as error:
        raise SourceFailed(f"{name} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceMissing
    return os.fdopen(descriptor, "rb")


def _refuse(folder: str, allowed: Sequence[Path]) -> NoReturn:
    if any(Path(folder).is_relative_to(root) for root in allowed):
        raise SourceRefused(
            f"A symbolic link in {folder!a} points outside the allowed folders. Copy the adapter there."
        )
    raise SourceRefused(f"{folder!a} is not inside an allowed adapter folder. {REMEDY}")


def _descend(root: str, parts: Sequence[str]) -> int:
    """Open a file below `root` step by step, following no link: one that was put there meanwhile leads nowhere."""
    descriptor = os.open(root, UNLINKED | os.O_DIRECTORY)
    for depth, part in enumerate(parts, 1):
        parent, kind = descriptor, os.O_DIRECTORY if depth < len(parts) else 0
        try:
            descriptor = os.open(part, UNLINKED | kind, dir_fd=parent)
        finally:
            os.close(parent)
    return descriptor
