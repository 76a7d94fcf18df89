"""Random bytes that all processes on one database share, made when first asked for."""

import secrets

from ..database.database import Database
from ..database.tables import Secret
from ..revision import hold_changes

API_KEYS = "api_keys"
"""Key of the HMAC under which API keys are stored."""


def shared_secret(database: Database, name: str) -> bytes:
    """32 random bytes, the same for everyone who asks by this name."""
    with database.read() as session:
        found = session.get(Secret, name)
    return found.value if found else _make(database, name)


def _make(database: Database, name: str) -> bytes:
    with database.write() as session:
        hold_changes(session)
        secret = session.get(Secret, name) or Secret(name=name, value=secrets.token_bytes(32))
        session.add(secret)
        return secret.value
