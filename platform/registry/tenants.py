"""Whose rows are whose. One tenant, `default`, exists from the start."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from .errors import RegistryError
from .tables import Tenant


def tenant_id(session: Session, name: str) -> int:
    """Raises RegistryError if there is no such tenant."""
    found = session.scalars(select(Tenant.id).where(Tenant.name == name)).one_or_none()
    if found is None:
        raise RegistryError(f"There is no tenant {name[:80]!a}.")
    return found
