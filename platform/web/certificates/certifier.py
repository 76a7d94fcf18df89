"""Certifier: measures what was asked for, one at a time, in a process of its own at low priority."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final

from loraplex.engine.certify.certificate import Certificate, CertifyJob
from loraplex.engine.certify.child import OnProgress, WorkerFault
from loraplex.registry.certificates.certificate_runs import Claim, Failure
from loraplex.registry.certificates.certificates import Measured, Subject
from loraplex.registry.database.database import AWAY
from loraplex.registry.registry import Registry

from ..http.database_errors import cause_of, log_failure
from .own_tokens import refuse_own_tokens
from .served import ServedPath, measured
from .standing import find_standing

POLL_SECONDS: Final = 2.0
BEAT_SECONDS: Final = 3.0
LONGEST_OUTAGE_SECONDS: Final = 3600.0
"""That the outcome of a measurement waits for the database."""
ACTOR: Final = "system"

Certify = Callable[[CertifyJob, OnProgress, float], Awaitable[Certificate]]
"""As engine/certify/child.py: certify."""

logger = logging.getLogger(__name__)


class Fault(ValueError):
    """A fault of ours, in words for everybody: what it was is for the operator, here and in the log under the id."""

    def __init__(self, error: BaseException) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.cause = str(error) if isinstance(error, WorkerFault) else f"{type(error).__name__}: {error}"
        super().__init__(f"an internal error. Ask the operator to look for {self.id} in the server log")


class Certifier:
    """Several processes on one database may each have one: nothing is measured twice, and nothing is lost. While the
    database is away a run goes on, and its end is told as soon as it is back."""

    def __init__(self, registry: Registry, served: ServedPath, certify: Certify, timeout_seconds: float) -> None:
        """`timeout_seconds`: that one measurement may take."""
        self._registry, self._served, self._certify = registry, served, certify
        self._timeout_seconds = timeout_seconds

    async def run(self, with_base: bool) -> None:
        """Measure for ever, the base too if asked. A database that is away is waited for."""
        away = False
        while True:
            try:
                if with_base:
                    await self._request_base()
                    with_base = False
                claim = await asyncio.to_thread(self._registry.certificate_runs.claim)
                away = False
                if claim is not None:
                    await self._measure(claim)
                    continue
            except Exception as error:
                if not away:
                    log_failure(logger, "certificates cannot be measured now; requests for them wait", error)
                away = True
            await asyncio.sleep(POLL_SECONDS)

    async def _request_base(self) -> None:
        """Ask for the base's own, unless there is one that holds."""
        subject = Subject(None)
        standing = await asyncio.to_thread(find_standing, self._registry.certificates, self._served, subject)
        if not standing.valid and standing.obstacle is None:
            await asyncio.to_thread(self._registry.certificates.request, subject, actor=ACTOR)

    async def _measure(self, claim: Claim) -> None:
        """One run to its end; given back when this task is cancelled."""
        runs, what = self._registry.certificate_runs, _words(claim.subject)
        logger.info("%s: measuring its certificate", what)
        try:
            certificate = await self._guarded(claim)
        except ValueError as error:
            logger.warning("%s has no certificate: %s", what, error)
            await _tell(runs.fail, claim, Failure(str(error), error.cause if isinstance(error, Fault) else None))
        except asyncio.CancelledError:
            await asyncio.to_thread(runs.release, claim)
            raise
        else:
            if certificate is None:
                return
            await _tell(runs.finish, claim, measured(certificate))
            logger.info("%s is certified: %.2f %% top-1", what, 100 * certificate.both.top1_agreement)

    async def _guarded(self, claim: Claim) -> Certificate | None:
        """The certificate, beating meanwhile; None when another worker has taken the run over."""
        share = 0.0

        def note(done: float, stage: str) -> None:
            nonlocal share
            share = done

        folder = None if claim.subject.adapter is None else self._registry.store.folder(claim.subject.adapter)
        if folder is not None and not folder.is_dir():
            raise ValueError("the adapter was removed before it could be measured")
        tokenizers, base = self._registry.tokenizers, self._served.tokenizer
        await asyncio.to_thread(refuse_own_tokens, tokenizers, base, claim.subject, claim.prompts)
        job = self._served.job(claim.subject, folder, claim.prompts)
        work = asyncio.ensure_future(self._certify(job, note, self._timeout_seconds))
        try:
            while not (await asyncio.wait([work], timeout=BEAT_SECONDS))[0]:
                if not await self._beat(claim, share):
                    return None
            return _result(work)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _beat(self, claim: Claim, share: float) -> bool:
        """False when another worker has taken the run over; a database that is away cannot say so."""
        try:
            return await asyncio.to_thread(self._registry.certificate_runs.beat, claim, share)
        except AWAY as error:
            logger.warning("the database is unavailable, the measurement goes on: %s", cause_of(error))
            return True


async def _tell(end: Callable[..., None], claim: Claim, outcome: Measured | Failure) -> None:
    """End the run, now or as soon as the database is back."""
    last_try = time.monotonic() + LONGEST_OUTAGE_SECONDS
    while True:
        try:
            await asyncio.to_thread(end, claim, outcome)
            return
        except AWAY as error:
            if time.monotonic() > last_try:
                raise
            logger.warning("the database is unavailable, the end of a measurement waits for it: %s", cause_of(error))
        await asyncio.sleep(POLL_SECONDS)


def _result(work: "asyncio.Future[Certificate]") -> Certificate:
    """ValueError in words, also for a fault of ours: trying it again for ever would help nobody."""
    error = work.exception()
    if isinstance(error, WorkerFault) or (error is not None and not isinstance(error, ValueError)):
        fault = Fault(error)
        logger.error("fault %s: a certificate's measurement failed", fault.id, exc_info=error)
        raise fault
    return work.result()


def _words(subject: Subject) -> str:
    return "the base" if subject.adapter is None else f"adapter {subject.adapter[:12]}"
