"""A file in the data folder says where a server runs, and holds a key for who may read it: words of the command line
ask the server that way.

Each server has a file of its own and keeps it locked until it ends, however it ends. A file without a lock is of a
server that is gone.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

FILES: Final = "server-*.json"
ACTOR: Final = "cli"
"""What audit rows call the command line, with a server or without one."""
EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}

logger = logging.getLogger(__name__)


class RunningServer(msgspec.Struct, frozen=True):
    url: str
    """Where this machine reaches it: without the `root_path` that only a proxy in front knows."""
    key: str
    """An operator's, for as long as the server runs."""
    pid: int
    started_at: str
    """ISO 8601 of UTC with microseconds, so that texts are in the order of the moments."""
    base: str
    """What clients call the base model."""
    model: str
    """The folder of the base model."""

    def __repr__(self) -> str:
        return f"RunningServer(url={self.url!r}, pid={self.pid})"


def local_url(host: str, port: int) -> str:
    """For who is on the same machine."""
    host = EVERY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def announced(data_dir: Path, server: RunningServer) -> Iterator[None]:
    """Have a file say so while the block lasts. Files of servers that were killed are removed."""
    for left in _files(data_dir):
        with contextlib.suppress(OSError):
            if _held(left) is None:
                left.unlink()
    descriptor, temporary = tempfile.mkstemp(dir=data_dir, prefix="server-", suffix=".json.partial")
    file = Path(temporary).with_suffix("")
    try:
        _lock(descriptor)
        os.write(descriptor, msgspec.json.format(msgspec.json.encode(server)) + b"\n")
        Path(temporary).rename(file)
        yield
    finally:
        for path in (file, Path(temporary)):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def running_server(data_dir: Path) -> RunningServer | None:
    """The server that runs on this data folder; of several, the one that started last. ValueError where this user may
    not know."""
    try:
        held = {path: content for path in _files(data_dir) if (content := _held(path)) is not None}
    except PermissionError:
        raise ValueError(
            f"the data folder {data_dir} belongs to another user. Run this as that user, or use the server with a key: "
            "--server URL, and LORAPLEX_KEY in the environment"
        ) from None
    servers = [_read(path, content) for path, content in held.items()]
    return max(servers, key=lambda server: server.started_at, default=None)


def _files(data_dir: Path) -> list[Path]:
    """One of each server, some of which may be gone."""
    try:
        return [path for path in data_dir.iterdir() if path.match(FILES)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _held(path: Path) -> bytes | None:
    """What the file of a server says; None: the server is gone."""
    try:
        with path.open("rb") as file:
            return file.read() if _is_locked(file.fileno()) else None
    except FileNotFoundError:
        return None


def _read(path: Path, content: bytes) -> RunningServer:
    try:
        return msgspec.json.decode(content, type=RunningServer)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read: {error}. Restart the server on it") from None


def _lock(descriptor: int) -> None:
    """Without it, as on some network file systems, words work on the database beside the server."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        logger.warning("no file locks in the data folder (%s): words need --server for this server", error.strerror)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
