"""RouteShares: sets the stable version and the candidates' weights of a route's row, by the operator's rule."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from ..database import tables
from ..database.tables import utc_now
from ..names import Reference
from .alias_rows import check_enabled, drop_idle, get_or_add
from .promotion import PromotionRule
from .routes import check_weights
from .rows import version_row


class RouteShares:
    """Within whoever's transaction. Raises InvalidRoute, and PromotionRefused where a version that the rule forbids
    would get more than it has."""

    def __init__(self, rule: PromotionRule | None) -> None:
        self._rule = rule

    def set_stable(self, session: Session, row: tables.Alias, version: tables.AdapterVersion) -> None:
        if row.version is version:
            return
        check_enabled(version)
        self.check(session, version)
        row.previous, row.version = row.version, version

    def set_weights(
        self, session: Session, row: tables.Alias, weights: Mapping[int, int], adapter: tables.Adapter
    ) -> None:
        """Per cent by version number, that of the stable version included."""
        check_weights(weights, row.version.number)
        shares = {number: weight for number, weight in weights.items() if weight and number != row.version.number}
        for candidate in row.candidates:
            if candidate.version.number not in shares:
                candidate.weight = 0
        for number, weight in shares.items():
            version = version_row(session, Reference(adapter.name, number), adapter.tenant.name)
            check_enabled(version)
            if weight > sum(one.weight for one in row.candidates if one.version is version):
                self.check(session, version)
            candidate = get_or_add(row, version)
            if not candidate.weight:
                candidate.since = utc_now()
            candidate.weight = weight
        drop_idle(row)

    def check(self, session: Session, version: tables.AdapterVersion) -> None:
        """By the rule alone."""
        if self._rule is not None:
            self._rule.check(session, version)
