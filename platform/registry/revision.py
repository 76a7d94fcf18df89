"""The generation number of desired state: readers poll it, changes bump it.

Desired state is what should be served: versions, aliases, pins. `web/adapters/reconciler.py` brings the engine to it.
"""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from .database.tables import Generation


def read_generation(session: Session) -> int:
    return session.scalars(select(Generation.value)).one()


def bump_generation(session: Session) -> int:
    """The new number. Called first in a change: from here to its commit no other change runs, on either database."""
    return session.scalars(update(Generation).values(value=Generation.value + 1).returning(Generation.value)).one()


def hold_changes(session: Session) -> None:
    """As bump_generation, for work that may turn out to change nothing."""
    session.scalars(select(Generation.value).with_for_update()).one()
