"""Asking for certificates and looking at them; shared by the admin API and the dashboard."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from loraplex.engine.certify.certificate import Certificate
from loraplex.registry.adapters.views import Adapter, Version
from loraplex.registry.certificates.certificates import CertificateRecord, Subject
from loraplex.registry.errors import UnknownAdapter
from loraplex.registry.names import parse_reference

from ...access.caller import Caller
from ...access.permissions import Permission
from ...certificates.standing import Standing, find_standing
from ...http.errors import ApiError
from ...http.refusals import as_api_error
from ...state import State
from ..fields import Moment, Sha256

BASE: Final = Subject(None)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """`cause`: what went wrong in the server, for its operator alone."""

    state: str
    progress: float | None
    problem: str | None
    cause: str | None
    requested_by: str | None
    requested_at: Moment
    ended_at: Moment | None


class CertificateStanding(msgspec.Struct, frozen=True, kw_only=True):
    """`certificate` holds while `valid`; `changes` says what no longer is as it was measured."""

    state: Literal["none", "waiting", "running", "failed", "valid", "outdated"]
    valid: bool
    changes: Sequence[str]
    obstacle: str | None
    attempt: Attempt | None
    digest: Sha256 | None
    certificate: Certificate | None


async def version_subject(state: State, caller: Caller, reference: str) -> Subject:
    """Of the version that the reference means, enabled or not. Raises ApiError."""
    with as_api_error():
        parsed = parse_reference(reference)
        adapter = await asyncio.to_thread(state.registry.adapters.get, parsed.name, caller.tenant)
        version = adapter.select(parsed.selector)
        if version is None:
            raise UnknownAdapter(f"Adapter '{adapter.name}' has no version '{reference}'.", [adapter.name])
    return subject_of(adapter, version)


def subject_of(adapter: Adapter, version: Version) -> Subject:
    return Subject(version.digest, adapter.prompts_digest)


async def standing_of(state: State, subject: Subject) -> Standing:
    return await asyncio.to_thread(find_standing, state.registry.certificates, state.served_path, subject)


async def standings_of(state: State, adapter: Adapter) -> dict[int, Standing]:
    """By version number."""
    certificates, served = state.registry.certificates, state.served_path

    def find() -> dict[int, Standing]:
        subjects = {version.number: subject_of(adapter, version) for version in adapter.versions}
        return {number: find_standing(certificates, served, subject) for number, subject in subjects.items()}

    return await asyncio.to_thread(find)


async def request_certificate(state: State, caller: Caller, subject: Subject, anew: bool) -> Standing:
    """Ask for it, unless there is a valid one and it need not be measured `anew`; how it stands then. ApiError where
    none can be measured."""
    standing = await standing_of(state, subject)
    if standing.obstacle is not None:
        message = f"The certificate cannot be measured: {standing.obstacle}"
        raise ApiError(409, message, code="certificate_impossible")
    if standing.valid and not anew:
        return standing
    request, most = state.registry.certificates.request, state.settings.max_waiting_certificates
    with as_api_error():
        await asyncio.to_thread(request, subject, **caller.by, most=most)
    return await standing_of(state, subject)


def standing_json(standing: Standing, caller: Caller) -> dict[str, Any]:
    """`attempt` is what was asked for last, by somebody unnamed where that was in another tenant, with the `cause` of a
    fault of the server for its operator; `certificate` is the one to look at, and holds while `valid` is true."""
    attempt, certificate = standing.attempt, standing.certificate
    told = CertificateStanding(
        state=standing.state,
        valid=standing.valid,
        changes=list(standing.changes),
        obstacle=standing.obstacle,
        attempt=None if attempt is None else _attempt(attempt, caller),
        digest=None if certificate is None else certificate.coverage.digest(),
        certificate=certificate,
    )
    fields: dict[str, Any] = msgspec.to_builtins(told)
    return fields


def _attempt(attempt: CertificateRecord, caller: Caller) -> Attempt:
    return Attempt(
        state=attempt.state,
        progress=attempt.progress,
        problem=attempt.problem,
        cause=attempt.cause if caller.allows(Permission.OPERATE) else None,
        requested_by=attempt.requested_by if attempt.tenant == caller.tenant else None,
        requested_at=attempt.created_at.isoformat(),
        ended_at=None if attempt.ended_at is None else attempt.ended_at.isoformat(),
    )
