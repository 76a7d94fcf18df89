"""What an adapter brings for text: tokens added to the base's, a chat template of its own, other named tokens.

It belongs to a version, not to the adapter's identity: two versions may share their weights and differ in this.
"""

import hashlib

import msgspec
from sqlalchemy.orm import Session

from . import tables
from .database import Database


class AddedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `added_tokens` in tokenizer.json. Matched literally; `normalized`: after the base's normalizer."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class AdapterTokenizer(msgspec.Struct, frozen=True):
    """Only what differs from the base."""

    added_tokens: list[AddedToken] = []
    """By id; the first follows the base's last token."""
    chat_template: str | None = None
    """Jinja source; None: the base's."""
    named_tokens: dict[str, str] = {}
    """bos_token, eos_token and the like; eos_token ends answers."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class Tokenizers:
    """Read by digest. What was stored never changes and is never removed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, digest: str) -> AdapterTokenizer:
        with self._database.read() as session:
            return msgspec.convert(session.get_one(tables.Tokenizer, digest).document, AdapterTokenizer)


def keep_tokenizer(session: Session, tokenizer: AdapterTokenizer | None) -> str | None:
    """Its digest, once its row is in the session; None for none."""
    if tokenizer is None:
        return None
    if session.get(tables.Tokenizer, tokenizer.digest) is None:
        session.add(tables.Tokenizer(digest=tokenizer.digest, document=msgspec.to_builtins(tokenizer)))
        session.flush()
    return tokenizer.digest
