"""The operator's rule for moving an alias: the version needs a valid certificate, and must agree with its reference.

It is checked within the transaction that would move the alias.
"""

from dataclasses import dataclass
from math import floor
from typing import Final

from sqlalchemy.orm import Session

from ..certificates.certificates import CoverageOf, Measured, Subject, valid_certificate
from ..database import tables
from ..errors import PromotionRefused

LEAST_TOKENS: Final = 512
"""Positions that must have been compared: over a few of them anything agrees."""


@dataclass(frozen=True, slots=True)
class PromotionRule:
    """`min_agreement`: least share of tokens that are most likely in both."""

    min_agreement: float
    coverage_of: CoverageOf

    def check(self, session: Session, version: tables.AdapterVersion) -> None:
        """Raise PromotionRefused unless an alias may point at this version."""
        label = f"Version {version.number} of '{version.adapter.name}'"
        measured = self._measured(session, version)
        if measured is None:
            raise PromotionRefused(
                f"{label} has no valid parity certificate, and aliases here can only point to certified versions. "
                f"Certify it on its page or with: loraplex certify {version.adapter.name}@{version.number}"
            )
        tokens = measured.document["num_tokens"]
        if tokens < LEAST_TOKENS:
            raise PromotionRefused(
                f"{label} was compared on {tokens} tokens only, and an alias needs {LEAST_TOKENS}. Give the adapter "
                "more or longer prompts, or remove its own to have some generated, and certify it again."
            )
        if measured.agreement < self.min_agreement:
            found, asked = _percent(measured.agreement), _percent(self.min_agreement)
            raise PromotionRefused(
                f"{label} gives the reference's token at {found} of positions; this server requires {asked} "
                "(promotion_min_agreement). Use less quantization, or lower the requirement."
            )

    def _measured(self, session: Session, version: tables.AdapterVersion) -> Measured | None:
        try:
            coverage = self.coverage_of(Subject(version.digest, version.adapter.prompts_digest))
        except ValueError as error:
            raise PromotionRefused(
                f"No version can be certified on this server, so aliases cannot move: {error}"
            ) from None
        record = valid_certificate(session, version.digest, coverage)
        return record.measured if record else None


def _percent(share: float) -> str:
    """Rounded down: what is too little shall not read as enough."""
    return f"{floor(share * 10000) / 100:.2f}%"
