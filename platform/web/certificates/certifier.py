"""Certifier: measures what was asked for, one at a time, in a process of its own at low priority."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from loraplex.engine.certificate import Certificate, CertifyJob
from loraplex.engine.certify_process import OnProgress
from loraplex.registry.certificate_runs import Claim
from loraplex.registry.certificates import Subject
from loraplex.registry.registry import Registry

from .served import ServedPath, measured
from .standing import find_standing

POLL_SECONDS: Final = 2.0
BEAT_SECONDS: Final = 3.0
ACTOR: Final = "system"

Certify = Callable[[CertifyJob, OnProgress], Awaitable[Certificate]]
"""As engine/certify_process.py: certify."""

logger = logging.getLogger(__name__)


class Certifier:
    """Several processes on one database may each have one: nothing is measured twice, and nothing is lost."""

    def __init__(self, registry: Registry, served: ServedPath, certify: Certify) -> None:
        self._registry, self._served, self._certify = registry, served, certify

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
            except Exception:
                if not away:
                    logger.exception("certificates cannot be measured now; what was asked for waits")
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
            await asyncio.to_thread(runs.fail, claim, str(error))
        except asyncio.CancelledError:
            await asyncio.to_thread(runs.release, claim)
            raise
        else:
            if certificate is None:
                return
            await asyncio.to_thread(runs.finish, claim, measured(certificate))
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
        job = self._served.job(claim.subject, folder, claim.prompts)
        work = asyncio.ensure_future(self._certify(job, note))
        try:
            while not (await asyncio.wait([work], timeout=BEAT_SECONDS))[0]:
                if not await asyncio.to_thread(self._registry.certificate_runs.beat, claim, share):
                    return None
            return _result(work)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


def _result(work: "asyncio.Future[Certificate]") -> Certificate:
    """ValueError in words, also for a fault of ours: trying it again for ever would help nobody."""
    error = work.exception()
    if error is not None and not isinstance(error, ValueError):
        logger.error("a certificate's measurement failed", exc_info=error)
        raise ValueError(f"the measurement failed: {type(error).__name__}: {error}")
    return work.result()


def _words(subject: Subject) -> str:
    return "the base" if subject.adapter is None else f"adapter {subject.adapter[:12]}"
