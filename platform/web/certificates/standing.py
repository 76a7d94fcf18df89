"""How an adapter, or the base, stands with its parity certificate: measured or not, and whether that still holds."""

from dataclasses import dataclass
from typing import Final, Literal

from loraplex.engine.certify.certificate import PARTS, Certificate
from loraplex.registry.certificates.certificates import CertificateRecord, Certificates, Subject

from .served import ServedPath, prompts_of

OF_BEFORE: Final = "the format of certificates (an earlier release of loraplex wrote this one)"


@dataclass(frozen=True, slots=True)
class Standing:
    """`attempt`: the newest request; `shown`: the certificate to look at, `certificate` what it says, None where an
    earlier release wrote it; it holds while `changes` is empty. `obstacle`: why none can be measured here, so that none
    holds; `changes` then names only the prompts, where they are others."""

    attempt: CertificateRecord | None
    shown: CertificateRecord | None
    certificate: Certificate | None
    changes: tuple[str, ...]
    obstacle: str | None

    @property
    def state(self) -> Literal["none", "waiting", "running", "failed", "valid", "outdated"]:
        """What people want to know first: what happens now, else what went wrong last, else what there is."""
        if self.attempt is not None and self.attempt.state in ("waiting", "running", "failed"):
            return self.attempt.state
        if self.shown is None:
            return "none"
        return "valid" if self.valid else "outdated"

    @property
    def valid(self) -> bool:
        return self.certificate is not None and not self.changes and self.obstacle is None


def find_standing(certificates: Certificates, served: ServedPath, subject: Subject) -> Standing:
    """Blocks on the database."""
    try:
        wanted = served.coverage(subject)
    except ValueError as error:
        known, obstacle = certificates.known(subject, None), str(error)
        certificate = _read(known.last)
        if certificate is not None and certificate.coverage.prompts != prompts_of(subject):
            return Standing(known.newest, known.last, certificate, (PARTS["prompts"],), obstacle)
        return Standing(known.newest, known.last, certificate, _unreadable(known.last, certificate), obstacle)
    known = certificates.known(subject, wanted.digest())
    shown = known.valid or known.last
    certificate = _read(shown)
    changes = _unreadable(shown, certificate) if certificate is None else tuple(certificate.coverage.changes(wanted))
    return Standing(known.newest, shown, certificate, changes, None)


def _unreadable(record: CertificateRecord | None, certificate: Certificate | None) -> tuple[str, ...]:
    return (OF_BEFORE,) if record is not None and certificate is None else ()


def _read(record: CertificateRecord | None) -> Certificate | None:
    """None too for a document of a release that wrote another kind."""
    if record is None or record.measured is None:
        return None
    try:
        return Certificate.from_json(record.measured.document)
    except ValueError:
        return None
