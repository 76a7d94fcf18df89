"""Where the tokenizers that adapters bring are kept."""

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from ..database import tables
from ..database.database import Database
from .adapter_tokenizer import AdapterTokenizer


class Tokenizers:
    """Read by digest. What was stored never changes and is never removed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, digest: str) -> AdapterTokenizer:
        with self._database.read() as session:
            return msgspec.convert(session.get_one(tables.Tokenizer, digest).document, AdapterTokenizer)

    def of_content(self, digest: str) -> list[AdapterTokenizer | None]:
        """What the versions of the adapter with this digest bring; None among them: one brings nothing."""
        version = tables.AdapterVersion
        query = select(version.tokenizer_digest).where(version.digest == digest, version.removed_at.is_(None))
        with self._database.read() as session:
            found = session.scalars(query.distinct()).all()
        return [None if one is None else self.get(one) for one in found]


def keep_tokenizer(session: Session, tokenizer: AdapterTokenizer | None) -> str | None:
    """Its digest, once its row is in the session; None for none."""
    if tokenizer is None:
        return None
    if session.get(tables.Tokenizer, tokenizer.digest) is None:
        session.add(tables.Tokenizer(digest=tokenizer.digest, document=msgspec.to_builtins(tokenizer)))
        session.flush()
    return tokenizer.digest
