"""A backup beside a running server: one tar of all that the data folder cannot make again.

First the database, then the files that it names: bytes are on the disk before their row, and stay an hour after it, so
that every row of the copy has its bytes. Packed weights are left out, the next start makes them anew.
"""

import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final

from loraplex.registry.database.database import parse_url

from .settings.data_folder import prepare_data_folder
from .settings.settings import Settings

DATABASE: Final = "loraplex.db"
KEPT: Final = (
    *("credentials.json", "loraplex.toml", "kv_scales.safetensors"),
    *("artifacts/blobs", "artifacts/adapters", "artifacts/files", "artifacts/batches"),
)


def write_backup(settings: Settings, file: BinaryIO) -> list[str]:
    """Write the tar to `file`, seekable or not; the names of its files. A PostgreSQL database is not in it."""
    folder = settings.data_dir
    names: list[str] = []
    with tarfile.open(fileobj=file, mode="w|") as tar:
        database = sqlite_file(settings)
        if database is not None:
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                snapshot = Path(temporary) / DATABASE
                _copy_database(database, snapshot)
                names += _add(tar, snapshot, DATABASE)
        for path in _files(folder):
            names += _add(tar, path, str(path.relative_to(folder)))
    return names


def restore_backup(settings: Settings, file: BinaryIO) -> list[str]:
    """Unpack into the data folder, which must hold none of it yet. ValueError says what is in the way."""
    folder = settings.data_dir
    prepare_data_folder(folder)
    taken = [name for name in (DATABASE, *KEPT) if name != "loraplex.toml" and (folder / name).exists()]
    if taken:
        raise ValueError(f"{folder} already contains {taken[0]}. Restore into an empty folder that no server uses")
    try:
        with tarfile.open(fileobj=file, mode="r|") as tar:
            return list(_unpacked(tar, folder))
    except tarfile.TarError as error:
        raise ValueError(f"this is not a complete backup of loraplex: {error}") from None


def sqlite_file(settings: Settings) -> Path | None:
    """None where the database is a server."""
    url = parse_url(settings.database)
    return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None


def _unpacked(tar: tarfile.TarFile, folder: Path) -> Iterator[str]:
    """Without extract(): Python 3.11.2, which is Debian 12's, has no filters that make it safe."""
    for member in tar:
        if not _is_ours(member.name) or not (member.isfile() or (member.islnk() and _is_ours(member.linkname))):
            raise tarfile.TarError(f"{member.name} is not part of a backup")
        path = folder / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.islnk():
            path.hardlink_to(folder / member.linkname)
        else:
            _write(path, tar.extractfile(member), member.mode)
        yield member.name


def _is_ours(name: str) -> bool:
    inside = ".." not in PurePosixPath(name).parts
    return inside and any(name == kept or name.startswith(f"{kept}/") for kept in (DATABASE, *KEPT))


def _write(path: Path, source: IO[bytes] | None, mode: int) -> None:
    assert source is not None, "a member appears twice"
    with path.open("wb") as target:
        path.chmod(mode & 0o644)
        shutil.copyfileobj(source, target)


def _copy_database(source: Path, target: Path) -> None:
    """One state of it, while others write."""
    if not source.is_file():
        raise ValueError(f"there is no database at {source}. Check --data-dir and LORAPLEX_DATABASE_URL")
    with closing(sqlite3.connect(source)) as database:
        database.execute("VACUUM INTO ?", (str(target),))


def _files(folder: Path) -> Iterator[Path]:
    for name in KEPT:
        path = folder / name
        yield from sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def _add(tar: tarfile.TarFile, path: Path, name: str) -> list[str]:
    """What goes while we look belongs to nothing that the database names."""
    try:
        tar.add(path, name, recursive=False)
    except FileNotFoundError:
        return []
    return [name]
