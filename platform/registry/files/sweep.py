"""Bringing the artifact store and the rows back together after whatever happened; run at start and now and then.

Bytes that no row wants are garbage and go after a grace time; a row whose bytes are gone is marked broken. Running it
twice, or dying in the middle of it and running it again, gives the same.
"""

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from ..audit import SYSTEM, record
from ..database import tables
from ..database.database import Database
from ..database.tables import utc_now
from ..revision import bump_revision, hold_changes
from .artifacts import ArtifactStore
from .uploads import forget_uploads

GRACE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What was found: leftovers of uploads, blobs and folders without a row, digests newly broken and healed."""

    leftovers: int
    orphans: int
    broken: tuple[str, ...]
    healed: tuple[str, ...]


def sweep(database: Database, store: ArtifactStore, grace: timedelta = GRACE) -> SweepReport:
    """No upload that is younger than `grace`, and no bytes that a request of that time may still read, are touched."""
    oldest = time.time() - grace.total_seconds()
    leftovers = [path for path in store.incoming.iterdir() if _changed(path) < oldest]
    for path in leftovers:
        _delete(path)
    with database.write() as session:
        hold_changes(session)
        wanted = _wanted(session, grace)
        broken, healed = _mark(session, store, wanted)
        orphans = _delete_orphans(store, wanted, oldest)
        forget_uploads(session, store, grace)
    return SweepReport(len(leftovers), orphans, tuple(broken), tuple(healed))


def _wanted(session: Session, grace: timedelta) -> list[tables.Artifact]:
    """Artifacts with a version that is not removed, or removed only within the grace time."""
    removed_at = tables.AdapterVersion.removed_at
    versions = select(tables.AdapterVersion.digest).where(or_(removed_at.is_(None), removed_at > utc_now() - grace))
    return list(session.scalars(select(tables.Artifact).where(tables.Artifact.digest.in_(versions))))


def _mark(session: Session, store: ArtifactStore, wanted: Iterable[tables.Artifact]) -> tuple[list[str], list[str]]:
    broken: list[str] = []
    healed: list[str] = []
    for artifact in wanted:
        problem = store.problem(artifact.digest, artifact.config_size, artifact.weights_size)
        if bool(problem) != bool(artifact.broken):
            artifact.broken = problem
            (broken if problem else healed).append(artifact.digest)
            action = "artifact.break" if problem else "artifact.heal"
            record(session, SYSTEM, action, f"artifact:{artifact.digest}", problem=problem)
    if broken or healed:
        bump_revision(session)
    return broken, healed


def _delete_orphans(store: ArtifactStore, wanted: Iterable[tables.Artifact], oldest: float) -> int:
    digests = {artifact.digest for artifact in wanted}
    files = {name for artifact in wanted for name in (artifact.config_sha256, artifact.weights_sha256)}
    folders = [path for path in store.adapters.iterdir() if path.name not in digests and _changed(path) < oldest]
    blobs = [path for path in store.blobs.iterdir() if path.name not in files and _changed(path) < oldest]
    for folder in folders:
        store.discard(folder)
    for blob in blobs:
        blob.unlink()
    return len(folders) + len(blobs)


def _changed(path: Path) -> float:
    """Seconds since the epoch; now for what another process has just removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
