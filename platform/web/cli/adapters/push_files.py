"""Sending an adapter's files to a server: each at most once, and on from where a connection broke."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE

from ...adapter_tokenizers.files import TOKENIZER_LIMITS
from ...management.registration import FIELDS
from ..api_client import ApiClient, Refused

CHUNK: Final = 1 << 20
ATTEMPTS: Final = 6
"""In a row that bring the server nothing new."""
PAUSE_SECONDS: Final = 0.5
"""Before the second attempt; twice as long before each further one."""
MOST_WAIT_SECONDS: Final = 900.0
"""For a server that says when to come back."""
LOST: Final = (408, 502, 503, 504)
OnBytes = Callable[[int], None]
"""Told how much of the file is at the server now."""
OnWait = Callable[[str], None]
"""Told the server's reason to come back later."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    path: Path
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.path.name


@dataclass(frozen=True, slots=True)
class Sent:
    """`begun_at`: the first byte that the last connection had to bring; the size where all were there."""

    file: LocalFile
    begun_at: int
    already_here: bool


def local_files(folder: Path) -> list[LocalFile]:
    """The files of the adapter in this folder. Raises ValueError where one that is needed is missing."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing. An adapter's folder has {CONFIG_FILE} and {WEIGHTS_FILE}.")
    beside = [name for name in TOKENIZER_LIMITS if (folder / name).is_file()]
    return [_local_file(folder / name) for name in (CONFIG_FILE, WEIGHTS_FILE, *beside)]


def send(client: ApiClient, adapter: str, file: LocalFile, on_bytes: OnBytes, on_wait: OnWait) -> Sent:
    """Bring it to the server. A connection that breaks is taken up again as long as each one brings something, and
    some times more; then, and where there was none at first, httpx.TransportError. Refused as the server says it, of
    a place among its uploads only after some minutes."""
    failures, kept, waited = 0, -1, 0.0
    while True:
        try:
            there = _what_is_there(client, adapter, file)
            if int(there["received"]) > kept:
                failures, kept = 0, int(there["received"])
            return _send(client, adapter, file, there, on_bytes)
        except (httpx.TransportError, Refused) as error:
            never_there = kept < 0 and isinstance(error, httpx.ConnectError)
            if never_there or not _may_go_on(error):
                raise
            later = error.retry_after if isinstance(error, Refused) else 0
            failures, waited = failures + (not later), waited + later
            if failures == ATTEMPTS or waited > MOST_WAIT_SECONDS:
                raise
            if later:
                on_wait(str(error))
        time.sleep(later or PAUSE_SECONDS * 2 ** (failures - 1))


def fields_of(files: list[LocalFile]) -> dict[str, str]:
    """The body that makes a version of them."""
    return {FIELDS[file.name]: file.sha256 for file in files}


def _what_is_there(client: ApiClient, adapter: str, file: LocalFile) -> dict[str, Any]:
    return client.ask("GET", _path(adapter, file), params={"size": file.size}, headers=_headers(file))


def _send(client: ApiClient, adapter: str, file: LocalFile, there: dict[str, Any], on_bytes: OnBytes) -> Sent:
    headers, start = _headers(file), int(there["received"])
    on_bytes(start)
    if there["already_here"]:
        return Sent(file, start, already_here=True)
    if start >= file.size:
        start = 0
    headers["content-length"] = str(file.size - start)
    if start:
        headers["content-range"] = f"bytes {start}-{file.size - 1}/{file.size}"
    client.ask("PUT", _path(adapter, file), content=_chunks(file.path, start, on_bytes), headers=headers)
    return Sent(file, start, already_here=False)


def _path(adapter: str, file: LocalFile) -> str:
    return f"/api/v1/adapters/{adapter}/files/{file.name}"


def _headers(file: LocalFile) -> dict[str, str]:
    return {"x-content-sha256": file.sha256}


def _chunks(path: Path, start: int, on_bytes: OnBytes) -> Iterator[bytes]:
    with path.open("rb") as opened:
        opened.seek(start)
        while chunk := opened.read(CHUNK):
            yield chunk
            on_bytes(opened.tell())


def _may_go_on(error: Exception) -> bool:
    """A server that is busy, starts again (a proxy says so for it), found us slow, or has not yet noticed that the last
    connection is gone, is worth another try."""
    if isinstance(error, Refused):
        return error.status in LOST or error.code in ("upload_busy", "wrong_offset")
    return not isinstance(error, httpx.UnsupportedProtocol)


def _local_file(path: Path) -> LocalFile:
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return LocalFile(path, path.stat().st_size, digest)
