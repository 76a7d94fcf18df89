"""Certificates: measurements of what serving costs an adapter's answers. They are asked for, and kept for good.

They belong to content: every version with the same digest shows the same ones, whatever it is called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sqlalchemy import ColumnElement, func, select, true
from sqlalchemy.orm import Session

from ..access.tenants import tenant_id
from ..audit import record
from ..database import tables
from ..database.database import Database
from ..database.tables import DEFAULT_TENANT, utc_now
from ..errors import CertificatesWaiting
from ..revision import hold_changes

OPEN: Final = ("waiting", "running")
GONE: Final = timedelta(minutes=10)
"""What was asked for of servers that nobody has seen for so long is everyone's: their settings were changed."""

State = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured. `adapter`: a digest, None for the base alone; `prompts`: a digest, None for generated ones."""

    adapter: str | None
    prompts: str | None = None


CoverageOf = Callable[[Subject], str]
"""The digest of what a certificate must cover now; ValueError says why none can be made."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A certificate. `coverage`: digest of all it covers; `agreement`: share of tokens, as served; `document`: all."""

    coverage: str
    agreement: float
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CertificateRecord:
    """What became of one request: `measured` once it is done, `problem` when it failed, `progress` from 0 to 1.

    `cause` is what went wrong in the server itself, for the eyes of its operator only; `requested_by` for those of
    `tenant` only (None: of nobody), as content may be another tenant's as well.
    """

    state: State
    measured: Measured | None
    problem: str | None
    cause: str | None
    progress: float
    requested_by: str
    tenant: str | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Known:
    """`newest`: request of this subject to servers like this one, whatever became of it; `last`: its newest
    certificate, whatever that covers, or where it has none, the adapter's on other prompts; `valid`: newest certificate
    that covers what was asked about."""

    newest: CertificateRecord | None
    last: CertificateRecord | None
    valid: CertificateRecord | None


class Certificates:
    """What people and uploads do with them; `certificate_runs.py` is for those who measure."""

    def __init__(self, database: Database, serving: str | None = None) -> None:
        """`serving`: how this server, or who asks for it, serves; None: whatever is asked for is its own."""
        self._database, self._serving = database, serving

    def request(self, subject: Subject, *, actor: str, tenant: str | None = None, most: int | None = None) -> None:
        """Have it measured, after whatever was asked for before. Does nothing while the same is waiting or running.

        `tenant`: of who asks, None for the server itself; raises CertificatesWaiting where `most` of its wait already.
        """
        with self._database.write() as session:
            hold_changes(session)
            asked_by = None if tenant is None else tenant_id(session, tenant)
            if _is_open(session, subject, self._serving):
                return
            if most is not None:
                _refuse_more(session, asked_by, most)
            _add(session, subject, actor, asked_by, self._serving)

    def keep(self, subject: Subject, measured: Measured, *, actor: str, tenant: str = DEFAULT_TENANT) -> None:
        """A certificate that was measured elsewhere. A request of the same that still waits has it herewith."""
        with self._database.write() as session:
            hold_changes(session)
            open_here = _of(subject) & (tables.Certificate.state == "waiting") & is_for(self._serving)
            waiting = _newest(session, open_here)
            complete(waiting or _add(session, subject, actor, tenant_id(session, tenant), self._serving), measured)

    def known(self, subject: Subject, coverage: str | None) -> Known:
        """`coverage`: digest of what is served now; None: not known, so nothing is valid."""
        done = (tables.Certificate.adapter_digest == subject.adapter) & (tables.Certificate.state == "done")
        with self._database.read() as session:
            return Known(
                newest=_record(_newest(session, _of(subject) & is_for(self._serving))),
                last=_record(_newest(session, done & _of(subject)) or _newest(session, done)),
                valid=None if coverage is None else valid_certificate(session, subject.adapter, coverage),
            )


def request_of_upload(
    session: Session, subject: Subject, actor: str, tenant: int, coverage_of: CoverageOf, serving: str | None
) -> None:
    """Have it measured unless there is a valid certificate, within a transaction that holds changes. The operator wants
    it, so that none are too many: uploads have bounds of their own."""
    if not _is_open(session, subject, serving) and not _is_valid(session, subject, coverage_of):
        _add(session, subject, actor, tenant, serving)


def valid_certificate(session: Session, adapter: str | None, coverage: str) -> CertificateRecord | None:
    """The newest certificate of this adapter, or of the base, that covers exactly this."""
    mine, same = tables.Certificate.adapter_digest == adapter, tables.Certificate.coverage_digest == coverage
    return _record(_newest(session, mine & same))


def is_for(serving: str | None) -> ColumnElement[bool]:
    """Requests that a server which serves like this measures: not those of others that are there."""
    if serving is None:
        return true()
    asked, there = tables.Certificate.serving, tables.Certifier
    others = select(there.serving).where(there.serving != serving, there.seen_at > utc_now() - GONE)
    return asked.is_(None) | asked.not_in(others)


def complete(row: tables.Certificate, measured: Measured) -> None:
    row.coverage_digest, row.agreement, row.document = measured.coverage, measured.agreement, measured.document
    row.state, row.problem, row.cause, row.progress, row.ended_at = "done", None, None, 1.0, utc_now()


def _is_open(session: Session, subject: Subject, serving: str | None) -> bool:
    return _newest(session, _of(subject) & tables.Certificate.state.in_(OPEN) & is_for(serving)) is not None


def _is_valid(session: Session, subject: Subject, coverage_of: CoverageOf) -> bool:
    """A subject that cannot be measured says so when it is its turn."""
    try:
        return valid_certificate(session, subject.adapter, coverage_of(subject)) is not None
    except ValueError:
        return False


def _refuse_more(session: Session, tenant: int | None, most: int) -> None:
    row = tables.Certificate
    waiting = select(func.count()).where(row.tenant_id == tenant, row.state == "waiting")
    if session.scalars(waiting).one() >= most:
        raise CertificatesWaiting(
            f"{most} certificates are already waiting, the limit (max_waiting_certificates). Try again when some are "
            "done."
        )


def _add(session: Session, subject: Subject, actor: str, tenant: int | None, serving: str | None) -> tables.Certificate:
    row = tables.Certificate(
        adapter_digest=subject.adapter,
        prompts_digest=subject.prompts,
        state="waiting",
        serving=serving,
        tenant_id=tenant,
        requested_by=actor,
    )
    session.add(row)
    what = f"artifact:{subject.adapter}" if subject.adapter else "base"
    record(session, actor, "certificate.request", what, tenant_id=tenant)
    return row


def _of(subject: Subject) -> ColumnElement[bool]:
    row = tables.Certificate
    return (row.adapter_digest == subject.adapter) & (row.prompts_digest == subject.prompts)


def _newest(session: Session, condition: ColumnElement[bool]) -> tables.Certificate | None:
    return session.scalars(
        select(tables.Certificate).where(condition).order_by(tables.Certificate.id.desc()).limit(1)
    ).first()


def _record(row: tables.Certificate | None) -> CertificateRecord | None:
    if row is None:
        return None
    measured = None
    if row.coverage_digest is not None and row.agreement is not None and row.document is not None:
        measured = Measured(row.coverage_digest, row.agreement, row.document)
    state: Any = row.state
    return CertificateRecord(
        state=state,
        measured=measured,
        problem=row.problem,
        cause=row.cause,
        progress=row.progress,
        requested_by=row.requested_by,
        tenant=None if row.tenant is None else row.tenant.name,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
