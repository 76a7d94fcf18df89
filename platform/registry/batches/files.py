"""Files of tenants: written as they come, found by id, gone when they expire."""

import os
import secrets
import tempfile
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from ..access.tenants import tenant_id
from ..database import tables
from ..database.database import Database
from ..database.tables import utc_now
from ..errors import FileInUse, FilesFull, UnknownFile
from ..files.artifacts import ArtifactStore, sync_folder
from ..files.full_disk import storage_full_errors
from .paging import find_row, page_of
from .views import UNFINISHED, File, Page, file_view

INPUT, OUTPUT = "batch", "batch_output"
GRACE: Final = timedelta(hours=1)
"""For which bytes without a row stay: their row may be on its way."""
PREFIX: Final = "file-"
"""Of files on their way."""


class FileWriter:
    """Call write(), then keep(); leaving `with` forgets what is not kept. Its methods block."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        descriptor, path = tempfile.mkstemp(prefix=PREFIX, dir=store.incoming)
        self._file, self._path = os.fdopen(descriptor, "wb"), Path(path)
        self.size = 0

    def write(self, chunk: bytes | memoryview) -> None:
        """Raises StorageFull."""
        with storage_full_errors():
            self._file.write(chunk)
        self.size += len(chunk)

    def keep(self, id: str) -> None:
        """The bytes are on the disk, and the file has its name. Raises StorageFull."""
        with storage_full_errors():
            self._file.flush()
            os.fchmod(self._file.fileno(), 0o400)
            os.fsync(self._file.fileno())
            self._path.rename(self._store.files / id)
            self._file.close()
            sync_folder(self._store.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:
            self._path.unlink()
            self._file.close()


class Files:
    """Each method takes the tenant whose files exist, and where one is given the `owner` whose alone do."""

    def __init__(self, database: Database, store: ArtifactStore) -> None:
        self._database, self._store = database, store

    def begin(self, tenant: str, size: int, most_bytes: int) -> FileWriter:
        """A new file of about `size` bytes. `most_bytes`: that the tenant's files may have together. Raises FilesFull,
        StorageFull."""
        self._store.check_room(size)
        with self._database.read() as session:
            owner = tenant_id(session, tenant)
            used = session.scalar(select(func.sum(tables.File.size)).where(tables.File.tenant_id == owner)) or 0
        if used + size > most_bytes:
            raise FilesFull(
                f"Your files have {used:,} bytes and may have {most_bytes:,}. Delete files that you need no longer."
            )
        return FileWriter(self._store)

    def add(self, writer: FileWriter, filename: str, *, actor: str, tenant: str, expires_at: datetime) -> File:
        """The file that was written, as input of batches. Raises StorageFull."""
        id = new_file_id()
        writer.keep(id)
        with self._database.write() as session:
            owner = tenant_id(session, tenant)
            return file_view(add_row(session, id, owner, INPUT, filename, writer.size, actor, expires_at))

    def get(self, id: str, tenant: str, owner: str | None = None) -> File:
        """Raises UnknownFile."""
        with self._database.read() as session:
            return file_view(_found(session, id, tenant, owner))

    def path(self, file: File) -> Path:
        """Where its bytes lie."""
        return self._store.files / file.id

    def list(
        self,
        tenant: str,
        owner: str | None = None,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 10_000,
        newest_first: bool = True,
    ) -> Page[File]:
        """Raises UnknownFile for an `after` that does not exist."""
        with self._database.read() as session:
            last = None if after is None else _found(session, after, tenant, owner)
            wanted = [_alive()] if purpose is None else [_alive(), tables.File.purpose == purpose]
            rows, more = page_of(session, tables.File, tenant, owner, last, limit, newest_first, *wanted)
            return Page([file_view(row) for row in rows], more)

    def delete(self, id: str, tenant: str, owner: str | None = None) -> None:
        """Raises UnknownFile, FileInUse."""
        with self._database.write() as session:
            row = _found(session, id, tenant, owner)
            reader = session.scalars(_readers(id).limit(1)).first()
            if reader is not None:
                raise FileInUse(f"The batch {reader} reads this file. Cancel the batch first, or wait for its end.")
            session.delete(row)
        (self._store.files / id).unlink(missing_ok=True)

    def clean_up(self, grace: timedelta = GRACE) -> None:
        """Forget what has expired, and bytes that no row has wanted for a while."""
        expired = tables.File.expires_at < utc_now()
        with self._database.write() as session:
            for row in list(session.scalars(select(tables.File).where(expired))):
                if session.scalars(_readers(row.id).limit(1)).first() is None:
                    session.delete(row)
        with self._database.read() as session:
            wanted = set(session.scalars(select(tables.File.id)))
        oldest = (utc_now() - grace).timestamp()
        unwanted = (path for path in self._store.files.iterdir() if path.name not in wanted)
        for path in (*unwanted, *self._store.incoming.glob(f"{PREFIX}*")):
            with suppress(FileNotFoundError):
                if path.stat().st_ctime < oldest:
                    path.unlink()


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def add_row(
    session: Session,
    id: str,
    tenant: int,
    purpose: str,
    filename: str,
    size: int,
    actor: str,
    expires_at: datetime,
) -> tables.File:
    row = tables.File(
        id=id,
        tenant_id=tenant,
        purpose=purpose,
        filename=filename,
        size=size,
        created_by=actor,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    return row


def _found(session: Session, id: str, tenant: str, owner: str | None) -> tables.File:
    row = find_row(session, tables.File, id, tenant, owner)
    if row is None or (row.expires_at is not None and row.expires_at < utc_now()):
        raise UnknownFile(f"No such File object: {id[:80]}")
    return row


def _alive() -> ColumnElement[bool]:
    return tables.File.expires_at.is_(None) | (tables.File.expires_at >= utc_now())


def _readers(id: str) -> Select[str]:
    """Ids of the batches that still read it."""
    return select(tables.Batch.id).where(tables.Batch.input_file_id == id, tables.Batch.status.in_(UNFINISHED))
