"""What an adapter brings for text: tokens added to the base's, a chat template of its own, other named tokens.

It belongs to a version, not to the adapter's identity: two versions may share their weights and differ in this.
"""

import hashlib

import msgspec


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
