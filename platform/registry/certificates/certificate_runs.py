"""Measuring what was asked for, one by one. Nothing that was asked for is lost: a worker that stops beating loses its
run, and the next one begins it anew."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from ..database import tables
from ..database.database import Database
from ..database.tables import utc_now
from ..revision import hold_changes
from .certificates import GONE, Measured, Subject, complete, is_for
from .golden_prompts import read_prompts

LEASE: Final = timedelta(seconds=60)
"""A run that nobody has heard of for so long is anyone's."""
SHOWN_EVERY: Final = timedelta(seconds=60)
MOST_ATTEMPTS: Final = 3
GIVEN_UP: Final = (
    f"the measurement was started {MOST_ATTEMPTS} times, and each time its server stopped before the end; "
    "it may have run out of memory"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that is this worker's while it beats. `prompts` None: they are to be generated."""

    id: int
    worker: str
    subject: Subject
    prompts: list[str] | None


@dataclass(frozen=True, slots=True)
class Failure:
    """`problem` says in words why it cannot be measured; `cause`, for the operator, what went wrong in the server."""

    problem: str
    cause: str | None = None


class CertificateRuns:
    """All methods but `claim` and `finish` do nothing to a run that somebody else has taken over."""

    def __init__(self, database: Database, lease: timedelta = LEASE, serving: str | None = None) -> None:
        """`serving`: as of Certificates."""
        self._database, self._lease, self._serving = database, lease, serving
        self._shown_at: datetime | None = None

    def claim(self) -> Claim | None:
        """Begin what was asked for first; None when nothing waits. What was begun too often has failed instead. What
        was asked of servers with other settings is theirs while they are there."""
        self._show_oneself()
        with self._database.read() as session:
            if self._next(session) is None:
                return None
        with self._database.write() as session:
            hold_changes(session)
            row = self._next(session)
            while row is not None and row.attempts >= MOST_ATTEMPTS:
                _fail(row, Failure(GIVEN_UP))
                session.flush()
                row = self._next(session)
            if row is None:
                return None
            worker, subject = uuid.uuid4().hex, Subject(row.adapter_digest, row.prompts_digest)
            row.state, row.worker, row.beat_at, row.progress = "running", worker, utc_now(), 0.0
            row.attempts += 1
            row.serving = self._serving or row.serving
            return Claim(row.id, worker, subject, read_prompts(session, row.prompts_digest))

    def beat(self, claim: Claim, progress: float) -> bool:
        """Tell that the run goes on, and how far it is, from 0 to 1. False: somebody else has taken it over."""
        self._show_oneself()
        with self._own(claim) as row:
            if row is not None:
                row.beat_at, row.progress = utc_now(), progress
            return row is not None

    def release(self, claim: Claim) -> None:
        """Give it back unfinished: it waits again, in its old place."""
        with self._own(claim) as row:
            if row is not None:
                row.state, row.worker, row.progress = "waiting", None, 0.0
                row.attempts -= 1

    def finish(self, claim: Claim, measured: Measured) -> None:
        """The first measurement counts, whoever has the run by now: the other worker's next beat ends its own."""
        with self._database.write() as session:
            row = session.get(tables.Certificate, claim.id, with_for_update=True)
            if row is not None and row.state != "done":
                complete(row, measured)

    def fail(self, claim: Claim, why: Failure) -> None:
        """Asking for it again begins a new run."""
        with self._own(claim) as row:
            if row is not None:
                _fail(row, why)

    def _next(self, session: Session) -> tables.Certificate | None:
        row = tables.Certificate
        lost = (row.state == "running") & (row.beat_at < utc_now() - self._lease)
        there = (lost | (row.state == "waiting")) & is_for(self._serving)
        return session.scalars(select(row).where(there).order_by(row.id).limit(1)).first()

    def _show_oneself(self) -> None:
        """That a server which serves like this is there; now and then, as it is written."""
        now = utc_now()
        if self._serving is None or (self._shown_at is not None and now - self._shown_at < SHOWN_EVERY):
            return
        with self._database.write() as session:
            hold_changes(session)
            session.execute(delete(tables.Certifier).where(tables.Certifier.seen_at < now - GONE))
            session.merge(tables.Certifier(serving=self._serving, seen_at=now))
        self._shown_at = now

    @contextmanager
    def _own(self, claim: Claim) -> Iterator[tables.Certificate | None]:
        with self._database.write() as session:
            row = session.get(tables.Certificate, claim.id, with_for_update=True)
            yield row if row is not None and (row.state, row.worker) == ("running", claim.worker) else None


def _fail(row: tables.Certificate, why: Failure) -> None:
    row.state, row.problem, row.cause, row.ended_at = "failed", why.problem, why.cause, utc_now()
