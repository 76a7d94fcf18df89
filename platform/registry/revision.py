"""The revision number of desired state: readers poll it, changes bump it.

Desired state is what should be served: versions, aliases, pins. `web/adapters/reconciler.py` brings the engine to it.
"""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from .database.tables import Revision


def read_revision(session: Session) -> int:
    return session.scalars(select(Revision.value)).one()


def bump_revision(session: Session) -> int:
    """The new number. Called first in a change: from here to its commit no other change runs, on either database."""
    return session.scalars(update(Revision).values(value=Revision.value + 1).returning(Revision.value)).one()


def hold_changes(session: Session) -> None:
    """As bump_revision, for work that may turn out to change nothing."""
    session.scalars(select(Revision.value).with_for_update()).one()
