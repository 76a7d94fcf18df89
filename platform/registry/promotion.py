"""The operator's rule for moving an alias: the version needs a valid certificate, and must agree with its reference."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from . import tables
from .certificates import Subject, valid_certificate
from .errors import PromotionRefused


@dataclass(frozen=True, slots=True)
class PromotionRule:
    """`min_agreement`: least share of tokens that are most likely in both. `coverage_of`: digest of what a certificate
    must cover now; it raises ValueError in words where none can be made."""

    min_agreement: float
    coverage_of: Callable[[Subject], str]

    def check(self, session: Session, version: tables.AdapterVersion) -> None:
        """Raise PromotionRefused unless an alias may point at this version."""
        label = f"Version {version.number} of '{version.adapter.name}'"
        agreement = self._agreement(session, version)
        if agreement is None:
            raise PromotionRefused(
                f"{label} has no valid parity certificate, and here aliases point at certified versions only. "
                f"Certify it on its page or with: loraplex certify {version.adapter.name}@{version.number}"
            )
        if agreement < self.min_agreement:
            raise PromotionRefused(
                f"{label} gives the reference's token in {agreement:.2%} of places, and this server asks for "
                f"{self.min_agreement:.2%} (promotion_min_agreement). Serve with less quantization, or ask for less."
            )

    def _agreement(self, session: Session, version: tables.AdapterVersion) -> float | None:
        try:
            coverage = self.coverage_of(Subject(version.digest, version.adapter.prompts_digest))
        except ValueError as error:
            raise PromotionRefused(f"No version can be certified on this server, so no alias moves: {error}") from None
        record = valid_certificate(session, version.digest, coverage)
        return record.measured.agreement if record and record.measured else None
